"""Modules that compute by their inputs' sizes are trained at every size: results and gradients are torch's."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autocast import dynamo
from autocast.dynamo import graphs

_Function = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]

#: Functions of a layer's result `y`, the input `x` and its length `n`, (2, n, 8). One module computes all.
_FUNCTIONS: dict[str, _Function] = {
    "y[:, : int(n * 0.7)]": lambda y, x, n: y[:, : int(n * 0.7)],
    "y[:, int(n * 0.7) :]": lambda y, x, n: y[:, int(n * 0.7) :],
    "y[:, : int(n**0.5)]": lambda y, x, n: y[:, : int(n**0.5)],
    "y[:, : round(n * 0.3)]": lambda y, x, n: y[:, : round(n * 0.3)],
    "roll": lambda y, x, n: y.roll(n // 3, 1),
    "gather": lambda y, x, n: y.gather(1, torch.arange(n - 1, -1, -1)[None, :, None].expand(2, n, 8)),
    "scatter": lambda y, x, n: torch.zeros(2, n + 1, 8).scatter(1, torch.arange(n)[None, :, None].expand(2, n, 8), y),
    "repeat_interleave": lambda y, x, n: y.repeat_interleave(2, 1),
    "interpolate": lambda y, x, n: F.interpolate(y.mT, scale_factor=1.7, mode="linear"),
    "masked_fill": lambda y, x, n: y.masked_fill((torch.arange(n) < n // 4)[None, :, None], 0.0),
    "arange": lambda y, x, n: y * torch.arange(n)[None, :, None],
    "std": lambda y, x, n: y.std(1),
    "median": lambda y, x, n: y.median(1).values,
    "halves of y and x": lambda y, x, n: torch.cat([y[:, n // 2 :], x[:, : n // 2]], 1),
    "rows of three times as many": lambda y, x, n: y.repeat(1, 3, 1).flatten(1)[torch.tensor([1, 0, 1])],
    "slice_scatter": lambda y, x, n: x.slice_scatter(y[:, : n // 2], 1, 0, n // 2),
    "attention": lambda y, x, n: F.scaled_dot_product_attention(y[:, None], x[:, None], x[:, None], is_causal=True),
    "y[:, ::2].flip(1)": lambda y, x, n: y[:, ::2].flip(1),
    "columns of a product": lambda y, x, n: (y @ x.mT)[:, :, : n // 2],
    "split": lambda y, x, n: y.split([n // 3, n - n // 3], 1)[1],
    "chunk": lambda y, x, n: y.chunk(2, 1)[0],
    "the shorter half of a softmax": lambda y, x, n: y.softmax(1).chunk(2, 1)[1],
    "narrow": lambda y, x, n: y.narrow(1, n - n // 3 - 1, n // 3),
    "pad": lambda y, x, n: F.pad(y, (0, 0, 0, n // 2)),
    "unfold": lambda y, x, n: y.unfold(1, 3, 2).sum(-1),
    "topk": lambda y, x, n: y.topk(max(1, n // 3), dim=1).values,
    "index_add": lambda y, x, n: torch.zeros(2, n // 2 + 1, 8).index_add(1, torch.arange(n) // 2, y),
    "conv1d": lambda y, x, n: F.conv1d(y.mT, torch.ones(8, 1, 3), groups=8, padding=1, stride=2),
    "layer_norm": lambda y, x, n: F.layer_norm(y.mT, (n,)),
    "batch_norm": lambda y, x, n: F.batch_norm(y, None, None, training=True),
    "attention of depth n": lambda y, x, n: F.scaled_dot_product_attention(y.mT, x.mT, y.mT),
}


class _Of(nn.Module):
    """Functions of layers of their own."""

    def __init__(self, functions: Iterable[_Function]) -> None:
        super().__init__()
        self.functions = tuple(functions)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in self.functions)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pairs = zip(self.functions, self.layers, strict=True)
        return tuple(function(layer(x), x, x.shape[1]) for function, layer in pairs)


def _trained(names: Iterable[str], module: Any, weights: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    weights.zero_grad()
    x.grad = None
    results = module(x)
    sum((y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum() for y in results).backward()
    computed = {"x": x.grad}
    for name, result, layer in zip(names, results, weights.layers, strict=True):
        computed |= {name: result, f"weight of {name}": layer.weight.grad, f"bias of {name}": layer.bias.grad}
    return computed


@pytest.mark.filterwarnings("ignore:.*torch computes what nothing here does")
def test_a_module_is_trained_at_every_length_by_two_programs() -> None:
    plain = _Of(_FUNCTIONS.values())
    module = copy.deepcopy(plain)
    compiled = torch.compile(module, backend=dynamo.backend, options={"policy": "mp0"})
    with patch.object(graphs, "variant_of", wraps=graphs.variant_of) as compiles:
        for length in (13, 7):
            x = torch.randn(2, length, 8, requires_grad=True)
            torch._dynamo.mark_dynamic(x, 1)
            got, expected = _trained(_FUNCTIONS, compiled, module, x), _trained(_FUNCTIONS, plain, plain, x)
            for name, value in expected.items():
                of = partial("{}: {}".format, name)
                torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-5, msg=of)
    assert compiles.call_count == 2


def test_a_size_that_is_said_in_two_ways_is_one_in_mixed_precision() -> None:
    plain = _Of([lambda y, x, n: F.pad(y.sin(), (0, 0, 1, 2))])  # whose backward has `n + 3 - 3` rows
    module = copy.deepcopy(plain)
    x = torch.randn(2, 9, 8, requires_grad=True)
    torch._dynamo.mark_dynamic(x, 1)
    got, expected = (
        _trained([""], torch.compile(module, backend=dynamo.backend), module, x),
        _trained([""], plain, plain, x),
    )
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("function", "lengths"),
    [
        (lambda y, x, n: y[:, n // 2 :], (10, 13, 7)),
        (lambda y, x, n: F.adaptive_avg_pool1d(y.mT, max(1, n // 3)) * math.log(n), (10, 13)),
    ],
    ids=["for all", "for itself"],
)
def test_a_second_length_is_compiled(function: _Function, lengths: tuple[int, ...]) -> None:
    plain = _Of([function])
    module = copy.deepcopy(plain)
    compiled = torch.compile(module, backend=dynamo.backend, options={"policy": "mp0"})
    for length in lengths:
        x = torch.randn(2, length, 8, requires_grad=True)
        got, expected = _trained([""], compiled, module, x), _trained([""], plain, plain, x)
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
