"""Elementary functions as TIR expressions that vectorize: float32 in and out, relative error below 1e-6.

LLVM turns `T.exp`, `T.erf` or `T.tanh` into one library call per element, because it has no vector forms of them;
these are polynomials (after Cephes, Moshier 1992) in additions and multiplications that the code generator contracts.
Arguments and results are expressions of any number of float32 lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import tirx

_SMALL_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
_ERF_NUMERATOR = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_DENOMINATOR = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
_EXP = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0)
_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_LOG2_HIGH, _LOG2_LOW = 0.693359375, -2.12194440e-4


def _lanes(x: tirx.Expr) -> int:
    dtype = str(x.ty.dtype)
    return int(dtype.partition("x")[2] or 1)


def constant(value: float, like: tirx.Expr, dtype: str = "float32") -> tirx.Expr:
    """`value` with as many lanes as `like`."""
    scalar = tirx.const(value, dtype)
    lanes = _lanes(like)
    return tirx.Broadcast(scalar, lanes) if lanes > 1 else scalar


def once(value: tirx.Expr, use: Callable[[tirx.Expr], tirx.Expr]) -> tirx.Expr:
    """`use(value)` with `value` computed once."""
    name = tirx.Var("t", str(value.ty.dtype))
    return tirx.Let(name, value, use(name))


def polynomial(x: tirx.Expr, coefficients: Sequence[float]) -> tirx.Expr:
    """Horner's scheme, highest power first."""
    result = constant(coefficients[0], x)
    for coefficient in coefficients[1:]:
        result = result * x + constant(coefficient, x)
    return result


def _power_of_two(n: tirx.Expr, like: tirx.Expr) -> tirx.Expr:
    """2^n of an int32 `n` in [-127, 128]: zero and infinity at the ends."""

    def int32(value: int) -> tirx.Expr:
        return constant(value, like, "int32")

    return tirx.reinterpret(str(like.ty.dtype), (n + int32(127)) << int32(23))


def exp(x: tirx.Expr) -> tirx.Expr:
    """e^x: 0 and infinity beyond the range, NaN for NaN."""

    def reduced(x: tirx.Expr) -> tirx.Expr:
        return once(tirx.floor(x * constant(1.4426950408889634, x) + constant(0.5, x)), lambda n: scaled(x, n))

    def scaled(x: tirx.Expr, n: tirx.Expr) -> tirx.Expr:
        remainder = (x - n * constant(_LOG2_HIGH, x)) - n * constant(_LOG2_LOW, x)
        mantissa = once(remainder, lambda r: polynomial(r, _EXP))
        whole = n.astype(f"int32{'' if _lanes(x) == 1 else f'x{_lanes(x)}'}")
        # Two factors reach denormal results, and infinity, that one exponent cannot express.
        return once(
            whole,
            lambda k: once(
                k >> constant(1, x, "int32"),
                lambda half: mantissa * _power_of_two(half, x) * _power_of_two(k - half, x),
            ),
        )

    # The bound comes first in `max` and `min`: a comparison with NaN answers the second operand.
    clamped = tirx.min(constant(89.0, x), tirx.max(constant(-104.0, x), x))
    return once(clamped, reduced)


def log(x: tirx.Expr) -> tirx.Expr:
    """The natural logarithm: -infinity at 0, NaN below."""

    def positive(x: tirx.Expr) -> tirx.Expr:
        lanes = "" if _lanes(x) == 1 else f"x{_lanes(x)}"
        denormal = x < constant(1.17549435e-38, x)
        scaled = tirx.Select(denormal, x * constant(2.0**25, x), x)
        bias = tirx.Select(denormal, constant(126.0 + 25.0, x), constant(126.0, x))

        def from_bits(bits: tirx.Expr) -> tirx.Expr:
            exponent = (bits >> constant(23, x, "int32")).astype(f"float32{lanes}") - bias
            fraction = (bits & constant(0x007FFFFF, x, "int32")) | constant(0x3F000000, x, "int32")
            return once(tirx.reinterpret(f"float32{lanes}", fraction), lambda m: split(m, exponent))

        return once(tirx.reinterpret(f"int32{lanes}", scaled), from_bits)

    def split(m: tirx.Expr, exponent: tirx.Expr) -> tirx.Expr:
        small = m < constant(0.70710678118654752, m)
        return once(
            tirx.Select(small, exponent - constant(1.0, m), exponent),
            lambda e: once(tirx.Select(small, m + m, m) - constant(1.0, m), lambda r: series(r, e)),
        )

    def series(r: tirx.Expr, e: tirx.Expr) -> tirx.Expr:
        tail = r * r * (r * polynomial(r, _LOG) - constant(0.5, r)) + e * constant(_LOG2_LOW, r)
        return r + tail + e * constant(_LOG2_HIGH, r)

    def whole(x: tirx.Expr) -> tirx.Expr:
        outside = tirx.Select(x < constant(0.0, x), constant(float("nan"), x), x)
        regular = tirx.Select(x < constant(float("inf"), x), positive(x), outside)
        at_zero = tirx.Select(tirx.EQ(x, constant(0.0, x)), constant(float("-inf"), x), outside)
        return tirx.Select(x > constant(0.0, x), regular, at_zero)

    return once(x, whole)


def tanh(x: tirx.Expr) -> tirx.Expr:
    """The hyperbolic tangent."""

    def small(x: tirx.Expr) -> tirx.Expr:
        return once(x * x, lambda square: polynomial(square, _SMALL_TANH) * square * x + x)

    def large(x: tirx.Expr) -> tirx.Expr:
        growth = once(tirx.abs(x), lambda a: exp(a + a))
        return once(
            one - (one + one) / (growth + one),
            lambda size: tirx.Select(x < constant(0.0, x), constant(0.0, x) - size, size),
        )

    one = constant(1.0, x)
    return once(x, lambda x: tirx.Select(tirx.abs(x) < constant(0.625, x), small(x), large(x)))


def erf(x: tirx.Expr) -> tirx.Expr:
    """The error function, a rational minimax approximation on [-4, 4]."""

    def ratio(x: tirx.Expr) -> tirx.Expr:
        return once(x * x, lambda s: x * polynomial(s, _ERF_NUMERATOR) / polynomial(s, _ERF_DENOMINATOR))

    return once(tirx.min(constant(4.0, x), tirx.max(constant(-4.0, x), x)), ratio)


def sigmoid(x: tirx.Expr) -> tirx.Expr:
    """1 / (1 + e^-x)."""
    one = constant(1.0, x)
    return one / (one + exp(constant(0.0, x) - x))


def silu(x: tirx.Expr) -> tirx.Expr:
    """x sigmoid(x)."""
    return once(x, lambda x: x * sigmoid(x))


def gelu(x: tirx.Expr) -> tirx.Expr:
    """x times the normal distribution's cumulative function."""
    half = constant(0.5, x)
    return once(x, lambda x: half * x * (constant(1.0, x) + erf(x * constant(0.5**0.5, x))))


def gelu_tanh(x: tirx.Expr) -> tirx.Expr:
    """The tanh approximation of gelu: x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))."""
    factor = 2 * (2 / math.pi) ** 0.5

    def inner(x: tirx.Expr) -> tirx.Expr:
        return x * sigmoid(x * (constant(factor, x) + constant(factor * 0.044715, x) * x * x))

    return once(x, inner)


def softplus(x: tirx.Expr) -> tirx.Expr:
    """log(1 + e^x), as max(x, 0) + log(1 + e^-|x|)."""
    one = constant(1.0, x)
    return once(x, lambda x: tirx.max(constant(0.0, x), x) + log(one + exp(constant(0.0, x) - tirx.abs(x))))
