"""A small network, batches to train it on, and trainers of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

import autocast
from autocast.model import Model
from autocast.training.losses import MSE
from autocast.training.optimizers import Adam
from autocast.training.trainer import Trainer

BATCH = 6


def small_module() -> torch.nn.Module:
    """A network that trains in no time: 5 features to 3, seeded."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))


@cache
def small_model() -> Model:
    """The network, imported; trainers leave it as it is."""
    return autocast.from_torch(small_module(), batch(0)[:1])


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of a step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 5, generator=generator)
    return x, torch.sin(x[:, :3])


def make_trainer(**options: Any) -> Trainer:
    """A trainer of the network: with Adam and a learning rate of 0.01 unless `options` say otherwise."""
    optimizer = options.pop("optimizer", Adam())
    return Trainer(small_model(), MSE(), optimizer, **{"learning_rate": 0.01} | options)
