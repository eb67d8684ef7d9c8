"""Special functions, imported and compiled: in float32 and 16 bits against float64, and at the ends of the range."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import ml_dtypes
import mpmath
import numpy as np
import pytest
import torch
from scipy import special as scipy
from torch import special

from autocast.frontend import from_torch
from autocast.vm import compile as compile_model
from tests.exactness import SHARE, UNITS, Exact, inputs, misses, units
from tests.frontend.helpers import Calls
from tests.special_values import pairs, values, wrong

_NAMES = "bessel_j0 bessel_j1 bessel_y0 bessel_y1 digamma erfc erfcx erfinv i0 i0e i1 i1e log_ndtr ndtri"
#: Beyond, scipy's Bessel functions, and its derivatives of digamma below zero, lose all digits.
_FAR = 1e3

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: getattr(special, name) for name in _NAMES.split()},
    "lgamma": torch.lgamma,
    **{f"polygamma {n}": lambda x, n=n: special.polygamma(n, x) for n in (1, 2, 5)},
    "spherical_bessel_j0": special.spherical_bessel_j0,
}
_EXACT: dict[str, Exact] = {
    **{name: getattr(scipy, name) for name in ["erfc", "erfcx", "erfinv", "i0e", "i1e", "log_ndtr", "ndtri"]},
    **{
        name: lambda x, name=name: np.where(np.isinf(x), x if name == "i1" else np.inf, getattr(scipy, name)(x))
        for name in ("i0", "i1")
    },
    **{f"bessel_{name}": getattr(scipy, name) for name in ("j0", "j1", "y0", "y1")},
    "digamma": scipy.digamma,
    "lgamma": lambda x: np.where(np.isinf(x), np.inf, scipy.gammaln(x)),
    **{f"polygamma {n}": lambda x, n=n: scipy.polygamma(n, x) for n in (1, 2, 5)},
    "spherical_bessel_j0": lambda x: scipy.spherical_jn(0, x),
}


@cache
def results(dtype: str) -> dict[str, np.ndarray]:
    x = inputs(dtype)
    low = dtype == "bfloat16"
    tensor = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if low else torch.from_numpy(x)
    model = from_torch(
        Calls(lambda x: tuple(function(x) for function in FUNCTIONS.values())), (tensor,), fallback="error"
    )
    arrays = [
        y.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if low else y.numpy() for y in compile_model(model)(tensor)
    ]
    return dict(zip(FUNCTIONS, arrays, strict=True))


def _unknown(name: str, x: np.ndarray) -> np.ndarray:
    """Where scipy is no reference."""
    with np.errstate(invalid="ignore"):
        size = x.astype(np.float64)
    if name.startswith("bessel"):
        return abs(size) >= _FAR
    return size <= -_FAR if name.startswith("polygamma") else np.zeros(x.shape, bool)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32_results_are_within_four_units_in_the_last_place(name: str) -> None:
    every = 8 if name.startswith("polygamma") else 1  # of which scipy takes 0.1 ms a number
    x, got = inputs("float32")[::every], results("float32")[name][::every]
    errors = units(x, got, _EXACT[name])
    errors[_unknown(name, x)] = 0
    worst = errors.argmax()
    assert errors[worst] <= UNITS, f"{name}({x[worst]!r}) = {got[worst]!r} is off by {errors[worst]} units"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_16_bit_results_are_the_nearest_numbers(name: str) -> None:
    x, got = inputs("bfloat16"), results("bfloat16")[name]
    with np.errstate(all="ignore"):
        exact = np.abs(_EXACT[name](x.astype(np.float64)))
    exact[_unknown(name, x)] = 0
    # Subnormal results are 0 where the instruction that narrows to bfloat16 takes them for it, or rounded twice.
    missed = misses(x, got, _EXACT[name]) & ~(exact < float(ml_dtypes.finfo(x.dtype).smallest_normal))
    places = list(zip(x[missed][:5].tolist(), got[missed][:5].tolist(), strict=True))
    assert missed.mean() <= 1 - SHARE, f"{name} misses {missed.mean():.2%}, such as {places}"


@pytest.mark.parametrize(
    ("name", "exact", "x"),
    [
        *(("bessel_j0", partial(mpmath.besselj, 0), x) for x in (-3e8, 1.68577466e11, 7.6845985e34)),
        *(("bessel_y1", partial(mpmath.bessely, 1), x) for x in (3e8, 1.68577466e11, 7.6845985e34)),
        *(("polygamma 2", partial(mpmath.polygamma, 2), x) for x in (-1e5 - 0.25, -2000.4)),
    ],
)
def test_far_from_zero_they_are_right_as_well(name: str, exact: Callable, x: float) -> None:
    (number,) = np.float32([x])
    with mpmath.workdps(60):
        expected = float(exact(mpmath.mpf(float(number))))
    got = _compiled(FUNCTIONS[name], torch.tensor([float(number)]))
    assert abs(float(got) - expected) <= UNITS * np.spacing(np.float32(abs(expected)))


UNARY: dict[str, Callable] = {
    **FUNCTIONS,
    "signbit": torch.signbit,
    "mantissa": lambda x: torch.frexp(x)[0],
    "exponent": lambda x: torch.frexp(x)[1],
}
BINARY: dict[str, Callable] = {"copysign": torch.copysign, "zeta": special.zeta}

#: Where one side is infinite or NaN alone.
_LIMIT = "torch answers NaN at infinity, where the limit is 0 or infinity"
_POLE = "torch's poles are where its sines vanish, up to rounding; these are at the whole numbers"
_DIFFERENCES = {
    **dict.fromkeys(("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "i0", "i1", "polygamma 2", "zeta"), _LIMIT),
    **dict.fromkeys(("polygamma 1", "polygamma 5"), f"{_LIMIT}; {_POLE}"),
}


def _compiled(function: Callable, *operands: torch.Tensor) -> torch.Tensor:
    return compile_model(from_torch(Calls(function), operands, fallback="error"))(*operands)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("functions", [UNARY, BINARY], ids=["one tensor", "two tensors"])
def test_special_functions_answer_as_torch_does_in_float64(functions: dict[str, Callable], dtype: str) -> None:
    operands = (values(dtype),) if functions is UNARY else pairs(dtype)
    results = _compiled(lambda *x: tuple(function(*x) for function in functions.values()), *operands)
    found = []
    for (name, function), got in zip(functions.items(), results, strict=True):
        expected = function(*(x.double() for x in operands)).to(got.dtype)
        if name in _DIFFERENCES:
            both = got.isfinite() & expected.isfinite()
            got, expected = got.where(both, 0), expected.where(both, 0)
        found += wrong(name, got, expected, operands)
    assert found == []


def test_the_next_number_is_torchs() -> None:
    operands = pairs("float32")
    got, expected = _compiled(torch.nextafter, *operands), torch.nextafter(*operands)
    assert wrong("nextafter", got, expected, operands) == []


def test_the_zeta_function_has_a_gradient_by_its_second_argument_alone() -> None:
    s, q = torch.tensor([2.0, 3.5]), torch.tensor([0.5, 4.0])
    step = torch.compile(special.zeta, backend="autocast")
    q.requires_grad_()
    (got,) = torch.autograd.grad(step(s, q).sum(), q)
    (expected,) = torch.autograd.grad(special.zeta(s, q).sum(), q)
    torch.testing.assert_close(got, expected)
