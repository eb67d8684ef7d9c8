"""`x[i]` and `x[i] = value`, where `i` is a tensor of one number, as torch computes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import autocast
from autocast import from_torch
from autocast.errors import FallbackWarning
from tests.frontend.helpers import Calls

pytestmark = pytest.mark.filterwarnings(f"error::{FallbackWarning.__module__}.FallbackWarning")


def _number(x: torch.Tensor, i: torch.Tensor) -> None:
    x[0, x[0].sum(1).argmax()] = 1.0
    x[i[0]] = i[1]


def _among_slices(x: torch.Tensor, i: torch.Tensor) -> None:
    x[:, i[0], 1:3] = x[:, 0, :2] * 2
    x[..., -i[1]] = x[..., 0]
    x[None, i[1], :, 1] = torch.ones(1, 1, 3)


def _beside_places(x: torch.Tensor, i: torch.Tensor) -> None:
    x[i[0].int(), i] = 5.0
    x[i, i[1], None] = x[i[0], i][:, None] + 1


def _on_and_on(x: torch.Tensor, i: torch.Tensor) -> None:
    for row in range(2):
        x[row, i[row]] += 1.0
        x[i[row], row].mul_(i[row] + 2)


@pytest.mark.parametrize("write", [_number, _among_slices, _beside_places, _on_and_on])
def test_numbers_in_tensors_say_where(write: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    def forward(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        write(x, i)
        return x

    x = torch.arange(24.0).sin().reshape(2, 3, 4)
    model = from_torch(Calls(forward), (x, torch.tensor([1, 0])))
    kernels, by_torch = autocast.vm.compile(model), autocast.to_torch(model)
    for places in ([1, 0], [0, 1], [1, 1]):
        i = torch.tensor(places)
        for run in (kernels, by_torch):
            torch.testing.assert_close(run(x, i), forward(x, i))
