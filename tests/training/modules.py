"""A small model to train: two linear layers around a tanh."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

import autocast
from autocast.model import Model


def network() -> nn.Sequential:
    """5 features in, 7 out, seeded weights that require gradients; parameters "0.weight" to "2.bias"."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 7)).eval()


def imported(module: nn.Module, rows: int = 6) -> Model:
    """The model of a module that takes `rows` rows of 5 features."""
    return autocast.from_torch(module, (torch.zeros(rows, 5),))


@cache
def imported_network() -> Model:
    """The network, imported once: steps that are made of it leave it as it is."""
    return imported(network())


def batches(count: int, rows: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Seeded inputs and targets of the network's output shape."""
    generator = torch.Generator().manual_seed(2)
    return [
        (torch.randn(rows, 5, generator=generator), torch.randn(rows, 7, generator=generator)) for _ in range(count)
    ]


def rate(value: float) -> torch.Tensor:
    """A learning rate as a training step takes it."""
    return torch.tensor(value, dtype=torch.float32)
