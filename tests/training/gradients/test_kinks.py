"""Gradients of torch's functions where their slopes jump, at NaN and at infinities: the choices are torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from autocast import amp, to_torch
from autocast.frontend import from_torch
from autocast.training import differentiate
from autocast.vm import compile as compile_model
from tests.frontend.helpers import Calls

NAN, INF = float("nan"), float("inf")

#: Functions of one tensor, with the places where their slopes jump.
FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[float, ...]]] = {
    "abs": (torch.abs, (0,)),
    "celu": (F.celu, (0,)),
    "clamp": (lambda x: x.clamp(-1.5, 0.5), (-1.5, 0.5)),
    "clamp from below": (lambda x: x.clamp(min=0.5), (0.5,)),
    "clamp from above": (lambda x: x.clamp(max=0.5), (0.5,)),
    "elu": (F.elu, (0,)),
    "hardshrink": (lambda x: F.hardshrink(x, 0.5), (-0.5, 0.5)),
    "hardsigmoid": (F.hardsigmoid, (-3, 3)),
    "hardswish": (F.hardswish, (-3, 3)),
    "hardtanh": (lambda x: F.hardtanh(x, -0.5, 0.75), (-0.5, 0.75)),
    "hardtanh in place": (lambda x: F.hardtanh(x + 0, inplace=True), (-1, 1)),
    "leaky_relu": (F.leaky_relu, (0,)),
    "relu": (F.relu, (0,)),
    "relu6": (F.relu6, (0, 6)),
    "relu6 in place": (lambda x: F.relu6(x + 0, inplace=True), (0, 6)),
    "selu": (F.selu, (0,)),
    "softshrink": (lambda x: F.softshrink(x, 0.5), (-0.5, 0.5)),
    "threshold": (lambda x: F.threshold(x, 0.5, 20.0), (0.5,)),
}


#: torch itself has both: 0 where it computes a vector, 1 of single numbers.
_UNDECIDED = {"hardshrink": NAN}


def _places(jumps: tuple[float, ...], dtype: torch.dtype) -> torch.Tensor:
    """At the jumps, at the next normal numbers beside them, far away, infinite and NaN; each often enough for torch to
    compute it in a vector, which it does otherwise of NaN."""
    at, tiny = torch.tensor(jumps, dtype=dtype), torch.finfo(dtype).tiny
    beside = [
        torch.where(at == 0, sign * tiny, torch.nextafter(at, torch.full_like(at, sign * INF))).to(dtype)
        for sign in (-1, 1)
    ]
    far = torch.tensor([-20, -2, -0.25, 0.25, 2, 20, -INF, INF, NAN], dtype=dtype)
    return torch.cat([at, *beside, far]).repeat_interleave(64)


def _expected(xs: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [x.clone().requires_grad_() for x in xs]
    for leaf, (function, _) in zip(leaves, FUNCTIONS.values(), strict=True):
        function(leaf).sum().backward()
    return [leaf.grad for leaf in leaves]


def _gradients(
    loss: Callable[..., torch.Tensor],
    xs: list[torch.Tensor],
    policy: str = "",
    ready: Callable[..., Any] = compile_model,
) -> list[torch.Tensor]:
    model = from_torch(Calls(loss), tuple(xs))
    mod = model.mod.clone()
    mod["main"] = differentiate(model.main, model.main.params[: len(xs)])
    model = model.replace(mod=mod, output_names=())
    return list(ready(amp.autocast(model, policy=policy) if policy else model)(*xs)[1:])


def _sum(*xs: torch.Tensor) -> torch.Tensor:
    return sum(function(x).float().sum() for (function, _), x in zip(FUNCTIONS.values(), xs, strict=True))


def _wrong(xs: list[torch.Tensor], got: list[torch.Tensor], tolerance: float) -> list[str]:
    return [
        f"{name}: {float(gradient)} at {float(place)}, not {float(exact)}"
        for name, x, gradients, expected in zip(FUNCTIONS, xs, got, _expected(xs), strict=True)
        for place, gradient, exact in list(zip(x, gradients, expected, strict=True))[::64]
        if not torch.isclose(gradient.float(), exact.float(), rtol=tolerance, atol=1e-7, equal_nan=True)
        and not (name in _UNDECIDED and torch.isclose(place.float(), torch.tensor(_UNDECIDED[name]), equal_nan=True))
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_at_jumps_of_the_slope_gradients_are_torchs(dtype: torch.dtype) -> None:
    xs = [_places(jumps, dtype) for _, jumps in FUNCTIONS.values()]
    assert _wrong(xs, _gradients(_sum, xs), 4 * torch.finfo(dtype).eps) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_at_jumps_of_the_slope_gradients_are_torchs_where_everything_is_stored_low(dtype: str) -> None:
    low = getattr(torch, dtype)
    xs = [_places(jumps, low).float() for _, jumps in FUNCTIONS.values()]
    got = _gradients(_sum, xs, f"dtype={dtype},preset=mp4")
    assert _wrong(xs, got, 4 * torch.finfo(low).eps) == []


#: Functions whose result is an element of their argument, for products to read; both are read by others, too.
SELECTIONS = {
    "clip": lambda x: x.clamp(0.75, 1.5),
    "maximum of columns": lambda x: x.amax(0, keepdim=True),
    "minimum of rows": lambda x: x.amin(1, keepdim=True).T,
}


@pytest.mark.parametrize(
    ("name", "policy"), [*((name, "dtype=bfloat16") for name in SELECTIONS), ("clip", "low_ops=clip")]
)
def test_a_gradient_passes_where_an_argument_is_float32_and_what_is_chosen_of_it_low(name: str, policy: str) -> None:
    torch.manual_seed(0)
    xs = [torch.randn(64, 64) for _ in range(3)]

    def loss(x: torch.Tensor, weight: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        h = torch.exp(x * weight / 2)
        return sum(y.square().mean() for y in (SELECTIONS[name](h) @ other, h @ other, torch.log(h)))

    leaves = [x.clone().requires_grad_() for x in xs]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    for got, exact in zip(_gradients(loss, xs, policy), expected, strict=True):
        assert (got - exact).norm() <= 0.02 * exact.norm()


def test_norms_of_zeros_have_no_gradient_and_the_first_of_two_equal_numbers_has_all_of_it() -> None:
    """As what is normalized, measured or compared is padded with zeros."""
    x = torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 3.0], [2.0, 0.0, 2.0], [0.0, 1.0, 0.0]])

    def loss(x: torch.Tensor) -> torch.Tensor:
        norms = (torch.linalg.vector_norm(x, order, 1).sum() for order in (1, 1.5, 2, 3))
        similar = F.normalize(x[1:], dim=1).sum() + F.cosine_similarity(x[1:], x[1:].flip(0), dim=1).sum()
        extreme = torch.fmax(x, x.clamp(max=0)) + torch.fmin(x, x.clamp(min=0))
        root = torch.linalg.vector_norm(x[1:], 0.5, 1).sum()
        return sum(norms) + root + similar + torch.dist(x, x) + torch.sinc(x).sum() + extreme.sum()

    leaf = x.clone().requires_grad_()
    loss(leaf).backward()
    torch.testing.assert_close(_gradients(loss, [x], ready=to_torch)[0], leaf.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_sigmoid_that_came_to_0_or_1_has_a_cross_entropy_and_no_gradient(reduction: str) -> None:
    x, target = torch.tensor([-200.0, -200.0, 0.5, 90.0, 90.0, -3.0]), torch.tensor([0.0, 1.0, 0.3, 0.0, 1.0, 1.0])

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy(x.sigmoid(), target, target + 1, reduction=reduction).sum()

    leaf = x.clone().requires_grad_()
    expected = loss(leaf, target)
    expected.backward()
    model = from_torch(Calls(loss), (x, target))
    torch.testing.assert_close(model(x, target), expected.detach())
    torch.testing.assert_close(_gradients(loss, [x, target], ready=to_torch)[0], leaf.grad)
