"""Trainers on torch's devices do what they do on ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import autocast
from autocast.errors import FallbackWarning, TrainingError, UnsupportedError
from autocast.training import MSE, SGD, Trainer
from autocast.training.optimizers import AdamW
from autocast.training.parallel.ranks import Ranks
from tests.training.trainers import batch, make_trainer, small_module

_TORCH: dict[str, Any] = {"device": "torch:cpu", "mode": "eager"}


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"optimizer": AdamW(), "clip_norm": 1.0}, 1e-5),
        ({"amp": "bfloat16"}, 2e-2),
        ({"amp": "float16"}, 2e-2),  # with a loss scale
    ],
)
def test_losses_are_those_of_our_device(options: dict[str, Any], tolerance: float) -> None:
    ours, torchs = make_trainer(**options), make_trainer(**_TORCH, **options)
    for step in range(4):
        assert torchs.step(batch(step)) == pytest.approx(ours.step(batch(step)), rel=tolerance)
    assert torchs.loss_scale == ours.loss_scale


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, of itself
def test_inductor_runs_the_step() -> None:
    ours, torchs = make_trainer(), make_trainer(device="torch:cpu")
    assert torchs.fit(batch, 2, progress=False) == pytest.approx(ours.fit(batch, 2, progress=False), rel=1e-5)


def test_a_checkpoint_goes_on_on_another_device(tmp_path: Path) -> None:
    first, whole = make_trainer(**_TORCH), make_trainer()
    first.fit(batch, 2, progress=False)
    first.save(tmp_path / "checkpoint")
    second = make_trainer()
    second.load(tmp_path / "checkpoint")
    expected = whole.fit(batch, 4, progress=False)
    assert second.fit(batch, 4, progress=False) == pytest.approx(expected[2:], rel=1e-5)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_evaluation_and_what_was_learned_are_those_of_our_device(kind: str) -> None:
    ours, torchs = make_trainer(), make_trainer(**_TORCH)
    of_kind = (lambda x: x) if kind == "torch" else torch.Tensor.numpy
    batches = [tuple(map(of_kind, batch(step))) for step in range(2)]
    metrics = {"distance": lambda outputs, labels: abs(outputs - labels).max()}
    means = []
    for trainer in (ours, torchs):
        trainer.fit(batch, 2, progress=False)
        means.append(trainer.evaluate(batches, metrics))
    assert means[1] == pytest.approx(means[0], rel=1e-5)
    module = small_module()
    torchs.to_torch(module)
    for name, tensor in ours.trained().params.items():
        np.testing.assert_allclose(module.get_parameter(name).detach().numpy(), tensor.numpy(), rtol=1e-4, atol=1e-6)


def test_a_device_that_is_missing_is_an_error_that_lists_those_that_there_are() -> None:
    with pytest.raises(UnsupportedError, match="'tpu' is not supported, expected one of cpu, torch:cpu"):
        make_trainer(device="tpu")


def test_several_processes_on_a_device_that_nobody_tried_that_on_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Ranks(rank=0, count=2)
    monkeypatch.setattr(Ranks, "connected", classmethod(lambda cls: two))
    monkeypatch.setattr("autocast.training.trainer.checked_device", lambda device: device)  # as if there were one
    with pytest.raises(TrainingError, match="2 processes train on the device 'cuda', expected 'cpu' or 'torch:cpu'"):
        make_trainer(parallel="data", device="cuda")


class _Inverse(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.linalg.inv_ex(self.linear.weight + torch.eye(4)).inverse


def test_gradients_that_are_left_to_torch_are_computed_by_torch() -> None:
    torch.manual_seed(0)
    module, x, labels = _Inverse(), torch.randn(3, 4), torch.zeros(3, 4)
    with pytest.warns(FallbackWarning, match="linalg_inv_ex"):
        model = autocast.from_torch(module, (x,))
    trainers = [Trainer(model, MSE(), SGD(), learning_rate=0.1, **options) for options in ({}, _TORCH)]
    for _ in range(2):
        ours, torchs = (trainer.step((x, labels)) for trainer in trainers)
        assert torchs == pytest.approx(ours, rel=1e-5)
