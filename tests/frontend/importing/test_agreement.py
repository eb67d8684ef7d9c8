"""Sizes that values decide, and of which the module says that they are sizes of something else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autocast import amp, from_torch, to_torch, vm
from autocast.training import differentiate

#: Of `x` with 6 columns, and as many numbers as values say.
_USES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sums": lambda x, y: (x + y).softmax(-1),
    "sums the other way": lambda x, y: (y + x).softmax(-1),
    "choices": lambda x, y: torch.where(y > 1, x, 0.0).softmax(-1),
    "biases of attention": lambda x, y: _attention(x, y),
    "masks of attention": lambda x, y: _attention(x, y > 1),
    "products": lambda x, y: x @ y,
    "rows that are written": lambda x, y: x.slice_scatter(y[None], 0, 1, 2).softmax(-1),
}


def _attention(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    rows = x.mT[None]
    return F.scaled_dot_product_attention(rows, rows, rows, mask)


class _Grid(nn.Module):
    """Numbers of a grid, whose height and width are values of a tensor, beside as many columns."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        height, width = (int(size.item()) for size in sizes)
        for size in (height, width):
            torch._check(size >= 1)
            torch._check(size <= 6)
        torch._check(height * width == 6)
        grid = torch.arange(height)[:, None] * torch.arange(width)[None, :] * self.scale
        return self.function(x, grid.reshape(height * width))


@pytest.mark.parametrize("name", _USES)
def test_sizes_that_values_decide_are_those_that_they_are_used_with(name: str) -> None:
    module, x = _Grid(_USES[name]).requires_grad_(False), torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    model = from_torch(module, (x, torch.tensor([2, 3])), fallback="error")
    for run in (vm.compile(model), to_torch(model)):
        for sizes in ([2, 3], [3, 2], [6, 1]):
            torch.testing.assert_close(run(x, torch.tensor(sizes)), module(x, torch.tensor(sizes)))


def test_biases_of_attention_whose_sizes_values_decide_have_gradients_in_mixed_precision() -> None:
    module = _Grid(lambda x, y: _attention(x, y).square().sum())
    x, sizes = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([2, 3])
    model = from_torch(module, (x, sizes))
    mod = model.mod.clone()
    mod["main"] = differentiate(model.main, [model.main.params[-1]])
    _, gradient = vm.compile(amp.autocast(model.replace(mod=mod, output_names=())))(x, sizes)
    (expected,) = torch.autograd.grad(module(x, sizes), [module.scale])
    torch.testing.assert_close(gradient, expected, rtol=3e-2, atol=1e-3)
