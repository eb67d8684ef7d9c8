"""Batch normalization in training: torch's kernels where they apply, and the same numbers everywhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autocast
from autocast import amp, vm
from autocast.training import MSE, SGD, training_step

aten = torch.ops.aten


def _step(shape: tuple[int, ...], *, affine: bool, dynamic: bool = False) -> autocast.Model:
    """A step that moves a batch norm, the bias before it, and its running statistics."""
    norm = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    bias = torch.zeros(shape[1:])

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(bias)
            self.norm = norm(shape[1], eps=1e-3, momentum=0.3, affine=affine)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x + self.bias)

    declared = {"n": ("x", 0, 0)} if dynamic else None
    return training_step(
        autocast.from_torch(Module().train(), (torch.randn(shape),), dynamic=declared), MSE(), SGD(momentum=0.9)
    )


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 7), (4, 3, 5, 6), (2, 3, 3, 2, 4), (4, 1, 1, 2)])
def test_statistics_are_computed_once_and_as_by_our_kernels(
    shape: tuple[int, ...], affine: bool, dtype: str | None
) -> None:
    torch.manual_seed(0)
    step = _step(shape, affine=affine)
    step = step if dtype is None else amp.autocast(step, dtype=dtype)
    ours, module = vm.compile(step), autocast.to_torch(step)
    for target in (aten._native_batch_norm_legit.no_stats, aten.native_batch_norm_backward):
        assert len(module.graph.find_nodes(op="call_function", target=target)) == 1
    for _ in range(3):
        inputs = (2 + 3 * torch.randn(shape), torch.randn(shape), torch.tensor(0.01))
        with torch.no_grad():
            torch.testing.assert_close(torch.from_dlpack(ours(*inputs)), module(*inputs), rtol=1e-4, atol=1e-5)
    for name, value in ours.state.items():
        torch.testing.assert_close(torch.from_dlpack(value), module.state_dict()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:var:UserWarning")  # torch's, of an empty batch
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_batch_that_varies_may_be_empty(count: int) -> None:
    step = _step((4, 3, 5), affine=True, dynamic=True)
    inputs = (torch.randn(count, 3, 5), torch.randn(count, 3, 5), torch.tensor(0.1))
    with torch.no_grad():
        found = autocast.to_torch(step)(*inputs)
    torch.testing.assert_close(found, torch.from_dlpack(vm.compile(step)(*inputs)), equal_nan=True)


def test_a_constant_channel_has_no_negative_variance() -> None:
    step = _step((8, 3, 4, 4), affine=True)
    module = autocast.to_torch(step)
    for _ in range(20):
        with torch.no_grad():
            module(torch.full((8, 3, 4, 4), 0.1), torch.randn(8, 3, 4, 4), torch.tensor(0.0))
    variance = module.state_dict()["norm.running_var"]
    assert (variance >= 0).all() and (variance < 1e-2).all()
