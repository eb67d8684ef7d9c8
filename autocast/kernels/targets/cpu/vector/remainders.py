"""Remainders and whole quotients, exact however large the quotient is."""

from __future__ import annotations

from autocast.kernels.targets.cpu.vector.doubles import Doubles
from autocast.kernels.targets.cpu.vector.function_body import Body, Definition, Value

#: Quotients below this are right in float64 when they are truncated, and their products with a float32 are exact.
_LARGE = 2.0**29


def _remainder(b: Body, x: Value, y: Value) -> Value:
    """x - trunc(x / y) y with the sign of x: in float64, or by the C library where the quotient is large."""
    d = Doubles(b)
    wide, divisor = d.widened(x), d.widened(y)
    quotient = d.intrinsic("trunc", d.op("fdiv", wide, divisor))
    rest = d.narrowed(d.op("fsub", wide, d.op("fmul", quotient, divisor)))
    rest = b.where("oeq", b.absolute(y), float("inf"), x, rest)
    large = b.compare("uge", b.absolute(d.narrowed(quotient)), _LARGE)
    (rest,) = b.unless(large, [(b.float, rest)], lambda: [b.float_op("frem", x, y)])
    return b.with_sign_of(rest, x)


def _floor_remainder(b: Body, x: Value, y: Value) -> Value:
    """x - floor(x / y) y, with the sign of y."""
    rest = _remainder(b, x, y)
    return b.select(_other_side(b, rest, y), rest + y, rest)


def _floor_quotient(b: Body, x: Value, y: Value) -> Value:
    """floor(x / y) of the exact quotient, which x / y may round up to the next integer."""
    rest = _remainder(b, x, y)
    quotient = (x - rest) / y
    quotient = b.select(_other_side(b, rest, y), quotient - 1.0, quotient)
    whole = b.intrinsic("floor", quotient)
    whole = b.where("ogt", quotient - whole, 0.5, whole + 1.0, whole)
    plain = x / y
    whole = b.where("oeq", quotient, 0.0, b.with_sign_of(0.0, plain), whole)
    return b.where("oeq", y, 0.0, plain, whole)


def _other_side(b: Body, rest: Value, y: Value) -> Value:
    """Whether a remainder is not 0 and has another sign than the divisor: the floor is one below the truncation."""
    negative, divisor_negative = b.compare("olt", rest, 0.0), b.compare("olt", y, 0.0)
    differs = b.emit(f"xor {b.bool} {negative.name}, {divisor_negative.name}")
    return b.emit(f"and {b.bool} {differs.name}, {b.compare('one', rest, 0.0).name}")


FUNCTIONS: dict[str, Definition] = {
    "mod": _remainder,
    "floor_mod": _floor_remainder,
    "floor_divide": _floor_quotient,
}
