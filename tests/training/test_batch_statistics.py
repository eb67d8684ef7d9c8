"""One step of ResNets in training mode beside torch: the loss, every gradient and the running statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import ResNetConfig, ResNetForImageClassification

import autocast
from autocast import amp, vm
from autocast.training import SGD, CrossEntropy, training_step
from tests.architectures import flatten

#: A step as long as this leaves of a parameter its gradient alone, to the last bit but one.
_RATE = 2.0**30


def _basic() -> torch.nn.Module:
    return ResNetForImageClassification(
        ResNetConfig(embedding_size=12, hidden_sizes=[24], depths=[2], layer_type="basic", num_labels=7)
    )


def _bottleneck() -> torch.nn.Module:
    return ResNetForImageClassification(
        ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], layer_type="bottleneck", num_labels=7)
    )


class Step(NamedTuple):
    """What one step computes, as float64: a loss, gradients and buffers by name."""

    loss: float
    gradients: dict[str, np.ndarray]
    buffers: dict[str, np.ndarray]

    def error(self, exact: Step) -> float:
        """How far all gradients together are off, as a part of them."""
        off = sum(float(np.square(self.gradients[name] - g).sum()) for name, g in exact.gradients.items())
        return (off / sum(float(np.square(g).sum()) for g in exact.gradients.values())) ** 0.5


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 3, 33, 29, generator=generator), torch.arange(8) % 7


def _module(build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    torch.manual_seed(0)
    return build().train()


def _ours(build: Callable[[], torch.nn.Module], *, low: bool) -> Step:
    module, (x, labels) = _module(build), _batch()
    before = {name: p.detach().double().numpy().copy() for name, p in module.named_parameters()}
    step = training_step(autocast.from_torch(module, (x,)), CrossEntropy(), SGD())
    executable = vm.compile(amp.autocast(step) if low else step, "cpu")
    loss = float(executable(x, labels, torch.tensor(_RATE)))
    state = {name: value.numpy().astype("float64") for name, value in executable.state.items()}
    return Step(
        loss,
        {name: (value - state[name]) / _RATE for name, value in before.items()},
        {name: state[name] for name, _ in module.named_buffers()},
    )


def _torchs(build: Callable[[], torch.nn.Module], *, low: bool = False, dtype: torch.dtype = torch.float32) -> Step:
    module, (x, labels) = _module(build).to(dtype), _batch()
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        loss = F.cross_entropy(flatten(module(x.to(dtype)))[0], labels)
    loss.backward()
    return Step(
        loss.item(),
        {name: p.grad.double().numpy() for name, p in module.named_parameters() if p.grad is not None},
        {name: buffer.double().numpy() for name, buffer in module.named_buffers()},
    )


@pytest.mark.parametrize("build", [_basic, _bottleneck])
def test_a_float32_step_is_that_of_float64(build: Callable[[], torch.nn.Module]) -> None:
    got, exact = _ours(build, low=False), _torchs(build, dtype=torch.float64)
    assert got.loss == pytest.approx(exact.loss, rel=1e-6)
    assert got.error(exact) < 1e-5
    for name, expected in exact.buffers.items():
        np.testing.assert_allclose(got.buffers[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_bfloat16_step_is_no_further_from_float64_than_that_of_torch() -> None:
    exact, torchs = _torchs(_bottleneck, dtype=torch.float64), _torchs(_bottleneck, low=True)
    got = _ours(_bottleneck, low=True)
    assert got.loss == pytest.approx(exact.loss, rel=0.01)
    assert got.error(exact) < max(0.05, 1.2 * torchs.error(exact))
    for name, expected in exact.buffers.items():
        np.testing.assert_allclose(got.buffers[name], expected, rtol=0.01, atol=0.01, err_msg=name)
