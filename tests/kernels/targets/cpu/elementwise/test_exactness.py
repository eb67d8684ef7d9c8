"""Every elementwise operator of Relax against float64: in float32 over all exponents, in 16 bits for every number."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from scipy import special
from tvm import relax

from autocast.operators import Kind, named, own
from tests.exactness import EXACT, SHARE, UNITS, Exact, inputs, misses, units
from tests.kernels.modules import module, run

op, nn = relax.op, relax.op.nn


def _power(exponent: float) -> Callable[[relax.Expr], relax.Expr]:
    return lambda x: op.power(x, relax.const(exponent, str(x.ty.dtype)))


_NUMPY = "abs ceil cos cosh exp expm1 floor log log1p negative sin sinh sqrt square tan tanh trunc"
FUNCTIONS: dict[str, tuple[Callable[[relax.Expr], relax.Expr], Exact]] = {
    **{name: (getattr(op, name, None) or getattr(nn, name), getattr(np, name)) for name in _NUMPY.split()},
    **{name: (getattr(nn, name), EXACT[name]) for name in ("gelu", "gelu_tanh", "silu", "selu", "softplus")},
    **{
        f"a{name}": (getattr(op, f"a{name}"), getattr(np, f"arc{name}"))
        for name in ["sin", "cos", "tan", "sinh", "cosh", "tanh"]
    },
    "clip": (lambda x: op.clip(x, -1.5, 2.0), lambda x: np.clip(x, -1.5, 2.0)),
    "nn.hardtanh": (lambda x: own.hardtanh(x, low=-1.5, high=2.0), lambda x: np.clip(x, -1.5, 2.0)),
    "erf": (op.erf, special.erf),
    **{
        f"leakyrelu {slope}": (lambda x, s=slope: nn.leakyrelu(x, s), lambda x, s=slope: np.where(x > 0, x, x * s))
        for slope in (0.25, 0.015625)
    },
    "relu": (nn.relu, lambda x: np.maximum(x, 0)),
    "round": (op.round, np.rint),
    "rsqrt": (op.rsqrt, lambda x: 1 / np.sqrt(x)),
    "sigmoid": (op.sigmoid, special.expit),
    "sign": (op.sign, lambda x: np.where(np.isnan(x), 0.0, np.sign(x))),
    "softplus of beta": (lambda x: nn.softplus(x, 2.0, 20.0), lambda x: np.logaddexp(0, 2 * x) / 2),
    **{f"power {n}": (_power(n), lambda x, n=n: x**n) for n in (-2.0, -1.0, 0.5, 1.5, 2.0, 3.0, 4.0, 5.0)},
}
#: Operators of two or more tensors, in test_special_values.py, and those of random numbers.
OTHERS = (
    "add atan2 divide ewise_fma floor_divide floor_mod log_add_exp maximum minimum mod multiply power subtract nn.prelu"
    " nn.seeded_dropout nn.seeded_normal nn.seeded_uniform nn.stochastic_round"
)

#: Functions that are as exact as their argument, not as their result: where they vanish, below zero, they lose digits.
AS_THEIR_ARGUMENT = {
    "gelu": "an exact tail would take half as much time again; torch's 1 + erf(x) has lost as many digits",
    "gelu_tanh": "the same: torch's 1 + tanh has lost as many digits",
}


@cache
def results(dtype: str) -> dict[str, np.ndarray]:
    x = inputs(dtype)
    mod = module(lambda x: relax.Tuple([build(x) for build, _ in FUNCTIONS.values()]), (x.shape, dtype))
    return dict(zip(FUNCTIONS, run(mod, x), strict=True))


def test_every_elementwise_operator_has_a_sample() -> None:
    sampled = {name.split()[0] for name in FUNCTIONS}
    assert {name.removeprefix("relax.") for name in named(Kind.ELEMENTWISE)} == {
        *OTHERS.split(),
        *(f"nn.{name}" if hasattr(nn, name) else name for name in sampled - {"power"}),
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32_results_are_within_four_units_in_the_last_place(name: str) -> None:
    x, got, exact = inputs("float32"), results("float32")[name], FUNCTIONS[name][1]
    errors = units(x, got, exact)
    if name in AS_THEIR_ARGUMENT:
        with np.errstate(all="ignore"):
            lost = np.abs(got - exact(x.astype(np.float64))) <= UNITS * np.spacing(np.abs(x))
        errors = np.where(lost & (x < 0), 0.0, errors)
    worst = errors.argmax()
    assert errors[worst] <= UNITS, f"{name}({x[worst]!r}) = {got[worst]!r} is off by {errors[worst]} units"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_16_bit_results_are_the_nearest_numbers(name: str, dtype: str) -> None:
    x, got = inputs(dtype), results(dtype)[name]
    missed = misses(x, got, FUNCTIONS[name][1])
    places = list(zip(x[missed][:5].tolist(), got[missed][:5].tolist(), strict=True))
    assert missed.mean() <= 1 - SHARE, f"{name} misses {missed.mean():.2%}, such as {places}"
