"""Bessel functions in float64: modified ones by their series, the others are the C library's.

Source: NIST Digital Library of Mathematical Functions, 10.25.2 and 10.40.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx

from autocast.operators.own.special.scalars import INFINITY, Scalar, let, number, of_libm, polynomial

#: Up to here the power series is taken, and beyond the asymptotic one: so many terms of each are exact in float64.
_FAR, _NEAR_TERMS, _FAR_TERMS = 20.0, 48, 24


def _near(order: int) -> list[float]:
    """Coefficients of I(x) / (x/2)^order in powers of x²/4."""
    return [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(_NEAR_TERMS)]


def _far(order: int) -> list[float]:
    """Coefficients of exp(-x) sqrt(2 pi x) I(x) in powers of 1/x."""
    terms = [1.0]
    for k in range(1, _FAR_TERMS):
        terms.append(-terms[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    return terms


def _modified(x: Scalar, order: int, scaled: bool) -> Scalar:
    """I of an order, 0 or 1, or exp(-|x|) times as much."""

    def of(size: Scalar) -> Scalar:
        near = polynomial(size * size * number(0.25), _near(order)) * (size * number(0.5) if order else number(1))
        far = polynomial(number(1) / size, _far(order)) / tirx.sqrt(size * number(2 * math.pi))
        if scaled:
            near = near * tirx.exp(-size)
        else:  # in two steps: the exponential overflows before the product
            far = let(tirx.exp(size * number(0.5)), lambda half: half * far * half)
            far = tirx.Select(size == INFINITY, INFINITY, far)
        return tirx.Select(size <= number(_FAR), near, far)

    value = let(tirx.abs(x), of)
    return let(value, lambda v: tirx.Select(x < number(0), -v, v)) if order else value


def i0(x: Scalar) -> Scalar:
    """The modified Bessel function of order 0."""
    return _modified(x, 0, scaled=False)


def i0e(x: Scalar) -> Scalar:
    """exp(-|x|) i0(x)."""
    return _modified(x, 0, scaled=True)


def i1(x: Scalar) -> Scalar:
    """The modified Bessel function of order 1."""
    return _modified(x, 1, scaled=False)


def i1e(x: Scalar) -> Scalar:
    """exp(-|x|) i1(x)."""
    return _modified(x, 1, scaled=True)


def of_c_library(name: str) -> Callable[[Scalar], Scalar]:
    """`j0`, `j1`, `y0` or `y1`: Bessel functions of the first and second kind."""
    return lambda x: of_libm(name, x)
