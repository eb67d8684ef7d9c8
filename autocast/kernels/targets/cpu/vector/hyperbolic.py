"""sinh and cosh, and the inverses of the hyperbolic functions, which are logarithms of 1 plus something small."""

from __future__ import annotations

from autocast.kernels.targets.cpu.vector.exponentials import LN2, exp, growth
from autocast.kernels.targets.cpu.vector.function_body import Body, Definition, Value
from autocast.kernels.targets.cpu.vector.logarithms import log1p

#: From here on x, x - 1, x + 1 and sqrt(x^2 - 1) are the same number; 2 x could overflow, and x^2 does.
_LARGE = 2.0**32


def _cosh(b: Body, x: Value) -> Value:
    """By the root of e^|x|, which is finite wherever the result is."""
    root = exp(b, b.absolute(x) * 0.5)
    return b.multiply_add(root * 0.5, root, 0.5 / root / root)


def _sinh(b: Body, x: Value) -> Value:
    """The same, and from e^|x| - 1 near zero, where two powers would cancel."""
    size = b.absolute(x)
    root = exp(b, size * 0.5)
    far = b.multiply_add(root * 0.5, root, -(0.5 / root / root))
    grown = growth(b, size)
    near = (grown + b.divide(grown, grown + 1.0)) * 0.5
    return b.with_sign_of(b.where("olt", size, 1.0, near, far), x)


def _asinh(b: Body, x: Value) -> Value:
    """log(1 + x + x^2 / (1 + sqrt(1 + x^2)))."""
    size = b.absolute(x)
    square = size * size
    excess = size + square / (b.intrinsic("sqrt", square + 1.0) + 1.0)
    return b.with_sign_of(_log_of_double(b, size, excess), x)


def _acosh(b: Body, x: Value) -> Value:
    """log(1 + t + sqrt(t (t + 2))), where t = x - 1."""
    above = x - 1.0
    excess = above + b.intrinsic("sqrt", above * (above + 2.0))
    return b.where("olt", x, 1.0, float("nan"), _log_of_double(b, x, excess))


def _log_of_double(b: Body, x: Value, excess: Value) -> Value:
    """log(1 + excess), or log(2 x) where x is large."""
    large = b.compare("ogt", x, _LARGE)
    return log1p(b, b.select(large, x, excess)) + b.select(large, LN2, 0.0)


def _atanh(b: Body, x: Value) -> Value:
    """log(1 + 2 x / (1 - x)) / 2."""
    size = b.absolute(x)
    return b.with_sign_of(log1p(b, (size + size) / (1.0 - size)) * 0.5, x)


FUNCTIONS: dict[str, Definition] = {"sinh": _sinh, "cosh": _cosh, "asinh": _asinh, "acosh": _acosh, "atanh": _atanh}
