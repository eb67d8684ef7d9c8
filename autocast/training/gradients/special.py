"""Special functions of one element; where torch has no gradient, that of the function."""

from __future__ import annotations

import math

from tvm import relax
from tvm.relax import op

from autocast.errors import GradientError
from autocast.operators.own import special
from autocast.training.gradients.elementwise import slope
from autocast.training.gradients.registry import Adjoint, Backward, gradient, not_differentiable, zero_gradient
from autocast.training.gradients.shapes import number


def _exponential(factor: float, of_square: float, x: relax.Expr) -> relax.Expr:
    """`factor * exp(of_square * x * x)`."""
    return number(factor, x) * op.exp(number(of_square, x) * (x * x))


def _polygamma(b: Backward) -> list[Adjoint]:
    (x,) = b.call.args
    return [b.adjoint * special.polygamma(x, n=int(b.call.attrs["n"]) + 1)]


def _zeta(b: Backward) -> list[Adjoint]:
    if b.needs[0]:
        raise GradientError("a gradient by s; expected only one by q, the other argument of zeta")
    s, q = b.call.args
    return [None, -(b.adjoint * (s * special.zeta(s + number(1, s), q)))]


def _over(y: relax.Expr, x: relax.Expr) -> relax.Expr:
    """`y / x`, and 1/2 at 0, where that is the slope of y."""
    at_zero = op.equal(x, number(0, x))
    return op.where(at_zero, number(0.5, x), y / op.where(at_zero, number(1, x), x))


def _frexp(b: Backward) -> list[Adjoint]:
    mantissa, _ = b.adjoint
    if mantissa is None:
        return [None]
    exponent = op.astype(relax.TupleGetItem(b.result, 1), mantissa.ty.dtype)
    return [mantissa * op.power(number(2, mantissa), -exponent)]


RULES = (
    gradient(
        "relax.special.erfc",
        slope(lambda x, y: _exponential(-2 / math.sqrt(math.pi), -1, x)),
        why="-2 / sqrt(pi) exp(-x²)",
    ),
    gradient(
        "relax.special.erfcx",
        slope(lambda x, y: number(2, x) * (x * y) - number(2 / math.sqrt(math.pi), x)),
        why="2 x y - 2 / sqrt(pi)",
    ),
    gradient(
        "relax.special.erfinv",
        slope(lambda x, y: _exponential(math.sqrt(math.pi) / 2, 1, y)),
        why="sqrt(pi) / 2 exp(y²)",
    ),
    gradient(
        "relax.special.log_ndtr",
        slope(lambda x, y: number(math.sqrt(2 / math.pi), x) / special.erfcx(number(-math.sqrt(0.5), x) * x)),
        why="sqrt(2 / pi) / erfcx(-x / sqrt(2))",
    ),
    gradient(
        "relax.special.ndtri",
        slope(lambda x, y: _exponential(math.sqrt(2 * math.pi), 0.5, y)),
        why="sqrt(2 pi) exp(y² / 2)",
    ),
    gradient("relax.special.lgamma", slope(lambda x, y: special.digamma(x)), why="digamma(x)"),
    gradient("relax.special.digamma", slope(lambda x, y: special.polygamma(x, n=1)), why="polygamma(1, x)"),
    gradient("relax.special.polygamma", _polygamma, why="polygamma(n + 1, x)"),
    gradient("relax.special.zeta", _zeta, why="-s zeta(s + 1, q) by q; none by s"),
    gradient("relax.special.i0", slope(lambda x, y: special.i1(x)), why="i1(x)"),
    gradient("relax.special.i0e", slope(lambda x, y: special.i1e(x) - op.sign(x) * y), why="i1e(x) - sign(x) y"),
    gradient("relax.special.i1", slope(lambda x, y: special.i0(x) - _over(y, x)), why="i0(x) - y / x"),
    gradient(
        "relax.special.i1e",
        slope(lambda x, y: special.i0e(x) - (op.sign(x) * y + _over(y, x))),
        why="i0e(x) - y (sign(x) + 1 / x)",
    ),
    gradient("relax.special.bessel_j0", slope(lambda x, y: -special.bessel_j1(x)), why="-j1(x)"),
    gradient("relax.special.bessel_j1", slope(lambda x, y: special.bessel_j0(x) - _over(y, x)), why="j0(x) - y / x"),
    gradient("relax.special.bessel_y0", slope(lambda x, y: -special.bessel_y1(x)), why="-y1(x)"),
    gradient("relax.special.bessel_y1", slope(lambda x, y: special.bessel_y0(x) - y / x), why="y0(x) - y / x"),
    gradient("relax.special.frexp", _frexp, why="2^-n of the mantissa; the exponent n is a whole number"),
    zero_gradient("relax.special.signbit", why="answers with booleans"),
    not_differentiable(
        "relax.special.nextafter", why="the next number of a dtype is no smooth function; torch has none"
    ),
)
