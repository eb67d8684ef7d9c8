"""Modules that compute by their inputs' sizes are trained at every size: results and gradients are torch's."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autocast import dynamo

#: The first is compiled as it is, the second for all sizes.
_LENGTHS = (10, 13, 7)

#: Of a layer's result `y`, the input `x` and its length `n`: (2, n, 8).
_FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]] = {
    "y[:, : int(n * 0.7)]": lambda y, x, n: y[:, : int(n * 0.7)],
    "y[:, int(n * 0.7) :]": lambda y, x, n: y[:, int(n * 0.7) :],
    "y[:, : int(n**0.5)]": lambda y, x, n: y[:, : int(n**0.5)],
    "y[:, : round(n * 0.3)]": lambda y, x, n: y[:, : round(n * 0.3)],
    "y[:, ::2].flip(1)": lambda y, x, n: y[:, ::2].flip(1),
    "columns of a product": lambda y, x, n: (y @ x.mT)[:, :, : n // 2],
    "halves of y and x": lambda y, x, n: torch.cat([y[:, n // 2 :], x[:, : n // 2]], 1),
    "split": lambda y, x, n: y.split([n // 3, n - n // 3], 1)[1],
    "chunk": lambda y, x, n: y.chunk(2, 1)[0],
    "narrow": lambda y, x, n: y.narrow(1, n - n // 3 - 1, n // 3),
    "pad": lambda y, x, n: F.pad(y, (0, 0, 0, n // 2)),
    "unfold": lambda y, x, n: y.unfold(1, 3, 2).sum(-1),
    "roll": lambda y, x, n: y.roll(n // 3, 1),
    "topk": lambda y, x, n: y.topk(max(1, n // 3), dim=1).values,
    "gather": lambda y, x, n: y.gather(1, torch.arange(n - 1, -1, -1)[None, :, None].expand(2, n, 8)),
    "scatter": lambda y, x, n: torch.zeros(2, n + 1, 8).scatter(1, torch.arange(n)[None, :, None].expand(2, n, 8), y),
    "index_add": lambda y, x, n: torch.zeros(2, n // 2 + 1, 8).index_add(1, torch.arange(n) // 2, y),
    "rows of three times as many": lambda y, x, n: y.repeat(1, 3, 1).flatten(1)[torch.tensor([1, 0, 1])],
    "slice_scatter": lambda y, x, n: x.slice_scatter(y[:, : n // 2], 1, 0, n // 2),
    "repeat_interleave": lambda y, x, n: y.repeat_interleave(2, 1),
    "interpolate": lambda y, x, n: F.interpolate(y.mT, scale_factor=1.7, mode="linear"),
    "adaptive_avg_pool1d": lambda y, x, n: F.adaptive_avg_pool1d(y.mT, max(1, n // 3)),
    "conv1d": lambda y, x, n: F.conv1d(y.mT, torch.ones(8, 1, 3), groups=8, padding=1, stride=2),
    "layer_norm": lambda y, x, n: F.layer_norm(y.mT, (n,)),
    "attention": lambda y, x, n: F.scaled_dot_product_attention(y[:, None], x[:, None], x[:, None], is_causal=True),
    "masked_fill": lambda y, x, n: y.masked_fill((torch.arange(n) < n // 4)[None, :, None], 0.0),
    "y * math.log(n)": lambda y, x, n: y * math.log(n),
    "linspace": lambda y, x, n: y * torch.linspace(0, 1, n)[None, :, None],
    "std": lambda y, x, n: y.std(1),
    "median": lambda y, x, n: y.median(1).values,
}


class _Of(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(8, 8), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer(x), x, x.shape[1])


def _trained(module: Any, weights: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    weights.zero_grad()
    result = module(x)
    (result * torch.linspace(-1, 1, result.numel()).reshape(result.shape)).sum().backward()
    return [result, x.grad, *(weight.grad for weight in weights.parameters())]


@pytest.mark.filterwarnings("ignore:.*torch computes what nothing here does")
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_a_module_is_trained_at_every_length(name: str) -> None:
    plain = _Of(_FUNCTIONS[name])
    module = copy.deepcopy(plain)
    compiled = torch.compile(module, backend=dynamo.backend, options={"policy": "mp0"})
    for length in _LENGTHS:
        x = torch.randn(2, length, 8)
        got, expected = _trained(compiled, module, x), _trained(plain, plain, x)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_resampler_of_sounds_of_any_length_is_trained() -> None:
    """Its weights' gradient reads the sound at as many places as the kernel is long."""

    class Resampler(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(5, 1, 70))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            frames = nn.functional.conv1d(nn.functional.pad(x, (20, 80))[:, None], self.kernel, stride=60)
            return frames.transpose(1, 2).reshape(x.shape[0], -1)

    torch.manual_seed(0)
    module = Resampler()
    compiled = torch.compile(module, backend="autocast", dynamic=True, options={"policy": "mp0"})
    for length in (1000, 1501):
        x, gradients = torch.randn(2, length), []
        for run in (module, compiled):
            module.zero_grad()
            run(x).square().sum().backward()
            gradients.append(module.kernel.grad.clone())
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-3)
    torch._dynamo.reset()


#: Views of an input, of sizes that vary: torch makes them of the strides and the offset that a graph returns.
_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "behind half": lambda x: x[x.shape[0] // 2 :],
    "expanded": lambda x: x[:1].expand(x.shape[0], -1),
    "the last column": lambda x: x.select(1, x.shape[1] - 1),
    "a row of the transposed": lambda x: x.mT[x.shape[1] // 2],
    "overlapping windows": lambda x: x.as_strided((x.shape[0] - 1, 2, 3), (x.stride(0), 1, 1), 2),
    "every second": lambda x: x[:, ::2],
}


@pytest.mark.parametrize("view", _VIEWS.values(), ids=_VIEWS)
def test_views_of_inputs_lie_where_torchs_do(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        return y, view(x), view(y)

    compiled = torch.compile(function, backend=dynamo.backend, options={"policy": "mp0"}, dynamic=True)
    for shape in ((4, 6), (6, 8), (5, 9)):
        x = torch.randn(shape, requires_grad=True)
        got, expected = compiled(x), function(x)
        torch.testing.assert_close(got, expected)
        assert [(one.stride(), one.storage_offset()) for one in got[:2]] == [
            (one.stride(), one.storage_offset()) for one in expected[:2]
        ]
        gradients = (torch.autograd.grad(sum(y.square().sum() for y in results), x) for results in (got, expected))
        torch.testing.assert_close(*gradients)
