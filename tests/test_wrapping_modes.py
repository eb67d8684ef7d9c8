"""What a call of a wrapped module goes by besides its inputs: torch's modes, and layers that it has yet to make."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import autocast


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def test_what_torch_casts_in_its_own_autocast_is_cast_there_alone() -> None:
    module, x = nn.Linear(16, 8), torch.randn(4, 16)
    wrapped = autocast.wrap(module)
    with torch.autocast("cpu", torch.bfloat16):
        assert wrapped(x).dtype is torch.bfloat16
    assert wrapped(x).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert wrapped(x).dtype is torch.bfloat16


def test_layers_that_are_lazy_are_made_by_the_first_call() -> None:
    module, x = autocast.wrap(nn.Sequential(nn.LazyLinear(3), nn.ReLU()), policy="mp0"), torch.randn(4, 6)
    for _ in range(2):
        torch.testing.assert_close(module(x), (x @ module[0].weight.T + module[0].bias).relu())


def test_the_default_dtype_is_that_of_the_call() -> None:
    class Ones(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ones(2) * x.shape[0]

    module, x = autocast.wrap(Ones()), torch.randn(3)
    before = module(x).dtype
    torch.set_default_dtype(torch.float64)
    try:
        assert (before, module(x).dtype) == (torch.float32, torch.float64)
    finally:
        torch.set_default_dtype(torch.float32)
