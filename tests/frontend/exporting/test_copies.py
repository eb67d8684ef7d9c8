"""What is copied into a tensor of another shape is repeated; a buffer keeps its shape."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import autocast
from autocast.errors import ImportModelError


class _Buffered(nn.Module):
    """Calls a function with a buffer (4, 3) and its input."""

    def __init__(self, function: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.register_buffer("kept", torch.arange(12.0).reshape(4, 3))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


def _new(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(5, *x.shape)
    y.copy_(x)
    y.T.copy_(y.sum((1, 2)))
    return y


def _assign(module: nn.Module, value: torch.Tensor) -> torch.Tensor:
    module.kept = value
    return value.sum(0)


_COPIES = {
    "a row into a buffer": lambda module, x: module.kept.copy_(x.mean(0)) * 2,
    "into parts of a buffer": lambda module, x: module.kept[1:3].copy_(x[0]).sum() + module.kept[:, 0].copy_(x.sum()),
    "into a new tensor": _new,
    "into the input": lambda module, x: x.copy_(x.mean(0)) + module.kept.sum(),
}


@pytest.mark.parametrize("function", _COPIES.values(), ids=_COPIES)
def test_what_is_copied_is_repeated(function: Callable[..., torch.Tensor]) -> None:
    module = _Buffered(function)
    example = torch.randn(2, 3)
    run = autocast.compile(autocast.from_torch(copy.deepcopy(module), (example,), dynamic={"n": (0, 0)}))
    for rows in (2, 5):
        ours = torch.randn(rows, 3)
        theirs = ours.clone()
        torch.testing.assert_close(run(ours), module(theirs))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "function", [lambda module, x: _assign(module, torch.cat([module.kept, x])), lambda _, x: _assign(_, x.mean(0))]
)
def test_a_buffer_that_would_get_another_shape_is_refused(function: Callable[..., torch.Tensor]) -> None:
    message = r"the buffer kept is \[4, 3\], and the module assigns a tensor of \[(6, )?3\] to it; expected the same"
    with pytest.raises(ImportModelError, match=message):
        autocast.from_torch(_Buffered(function), (torch.randn(2, 3),))


def test_axes_of_an_input_that_change_in_place_are_refused_with_what_to_call() -> None:
    with pytest.raises(ImportModelError, match=r"transpose_, t_, .* call what returns another tensor"):
        autocast.from_torch(_Buffered(lambda _, x: x.t_()), (torch.randn(2, 3),))


def test_a_diagonal_of_a_view_that_is_filled_is_refused_with_what_to_call() -> None:
    with pytest.raises(ImportModelError, match=r"fill_diagonal_ does: write into its diagonal\(\)"):
        autocast.from_torch(_Buffered(lambda _, x: x.sin().reshape(3, 2).fill_diagonal_(0.5)), (torch.randn(2, 3),))
