"""Slices of as many rows as values decide, few and none too, beside torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import autocast
from autocast import vm

_SLICES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "[:10]": lambda y: y[:10],
    "[2:10]": lambda y: y[2:10],
    "[3:]": lambda y: y[3:],
    "[-5:]": lambda y: y[-5:],
    "[1:-1]": lambda y: y[1:-1],
    "[5:2]": lambda y: y[5:2],
    "[1::2]": lambda y: y[1::2],
    "[2:10:3]": lambda y: y[2:10:3],
    "half": lambda y: y[y.shape[0] // 2 :],
    "differences": lambda y: y[1:] - y[:-1],
    "the largest": lambda y: y[y[:, 0].argsort(descending=True)[:4]],
}


class _Chosen(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.function(x[mask])


@pytest.mark.parametrize("dynamic", [None, {"batch": ("*", 0, 2, 64)}], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", _SLICES)
def test_slices_end_where_the_rows_do(name: str, dynamic: dict[str, tuple[str, int, int, int]] | None) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 4, generator=generator)
    module = _Chosen(_SLICES[name])
    model = autocast.from_torch(module, (x, x[:, 0] > 0), dynamic=dynamic)
    compiled, in_torch = vm.compile(model), autocast.to_torch(model)
    for count in (0, 1, 2, 3, 4, 9, 10, 11, 20):
        mask = torch.zeros(20, dtype=torch.bool)
        mask[torch.randperm(20, generator=generator)[:count]] = True
        for run in (compiled, in_torch):
            torch.testing.assert_close(run(x, mask), module(x, mask), rtol=0, atol=0)


_BOUNDS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "[:n]": lambda x, n: x[:n],
    "[n:]": lambda x, n: x[n:],
    "[n:-1]": lambda x, n: x[n:-1],
    "[2:n]": lambda x, n: x[2:n],
    "[1:n:3]": lambda x, n: x[1:n:3],
    "[:, :n]": lambda x, n: x[:, :n] * 2.0,
}


class _Cut(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return self.function(x, n.item())  # type: ignore[arg-type]


@pytest.mark.parametrize("dynamic", [None, {"rows": ("x", 0, 2, 64)}], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", _BOUNDS)
def test_numbers_in_tensors_end_slices_as_in_python(
    name: str, dynamic: dict[str, tuple[str, int, int, int]] | None
) -> None:
    x, module = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), _Cut(_BOUNDS[name])
    model = autocast.from_torch(module, (x, torch.tensor(3)), dynamic=dynamic, fallback="error")
    compiled, in_torch = vm.compile(model), autocast.to_torch(model)
    for n in (0, 1, 3, 4, 8, 9, 10, 40, -1, -3, -9, -12):
        for run in (compiled, in_torch):
            torch.testing.assert_close(run(x, torch.tensor(n)), module(x, torch.tensor(n)), rtol=0, atol=0)
