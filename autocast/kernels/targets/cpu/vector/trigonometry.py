"""sin, cos and tan, for arguments of any size.

Arguments are reduced in float64, which holds enough of pi for |x| < 2^20. Vectors with a larger element branch to a
reduction after Payne and Hanek (1983), whose products with pieces of 2 / pi are exact in float64.
"""

from __future__ import annotations

from fractions import Fraction

from autocast.kernels.targets.cpu.vector.doubles import Doubles
from autocast.kernels.targets.cpu.vector.function_body import Body, Definition, Value

#: 2 / pi to 256 bits after the point.
_TWO_OVER_PI = Fraction(0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561, 1 << 256)
_PI_OVER_2 = 1.5707963267948966
_PI_OVER_2_HIGH = 1.57079632673412561417  # 33 bits: n * high is exact for the n that occur
_PI_OVER_2_LOW = 6.07710050650619224932e-11
_LARGE = 2.0**20  # beyond it, n * high is not exact any more
_ROUND_MAGIC = 1.5 * 2.0**52  # adding it rounds a float64 to an integer, kept in the low bits of the sum

#: Bits of 2 / pi in one piece: 24 bits of x times these are exact. Seven reach far enough below the largest float32.
_PIECE_BITS, _PIECES = 29, 7

#: (sin(x) - x) / x^3 and (cos(x) - 1 + x^2 / 2) / x^4 for |x| <= pi / 4, the highest power of x^2 first; relative
#: errors of the sine and the cosine: 2^-27 and 2^-32.
_SIN_TAIL = (-0.00019516655810868327, 0.008332173543199983, -0.166666548734784)
_COS_TAIL = (2.443773029647394e-05, -0.0013887361452645374, 0.041666646747847286)


def _near(d: Doubles, x: Value) -> tuple[Value, Value]:
    """(r, n) with x = r + n pi / 2, for |x| < 2^20."""
    shifted = d.intrinsic("fmuladd", x, 1 / _PI_OVER_2, _ROUND_MAGIC)
    negative = d.op("fsub", _ROUND_MAGIC, shifted)
    rest = d.intrinsic("fmuladd", negative, _PI_OVER_2_HIGH, x)
    return d.narrowed(d.intrinsic("fmuladd", negative, _PI_OVER_2_LOW, rest)), d.low_bits(shifted)


def _far(d: Doubles, x: Value) -> tuple[Value, Value]:
    """The same for all x: whole turns of every product are dropped, quarters are counted."""
    rest: Value | float = 0.0
    quarters: Value | float = 0.0
    for piece in range(_PIECES):
        bits = int(_TWO_OVER_PI * 2 ** (_PIECE_BITS * (piece + 1))) % 2**_PIECE_BITS
        product = d.op("fmul", x, bits * 2.0 ** (-_PIECE_BITS * (piece + 1)))
        turns = d.intrinsic("rint", d.op("fmul", product, 0.25))
        rest = d.op("fadd", rest, d.op("fsub", product, d.op("fmul", turns, 4.0)))
        whole = d.intrinsic("rint", rest)
        rest, quarters = d.op("fsub", rest, whole), d.op("fadd", quarters, whole)
    return d.narrowed(d.op("fmul", rest, _PI_OVER_2)), d.low_bits(d.op("fadd", quarters, _ROUND_MAGIC))


def _reduced(b: Body, x: Value) -> tuple[Value, Value]:
    """(r, n) with x = r + n pi / 2, |r| <= pi / 4 and n an int32, right in its two lowest bits."""
    d = Doubles(b)
    wide = d.widened(x)
    near = _near(d, wide)
    large = b.compare("uge", b.absolute(x), _LARGE)
    rest, quarters = b.unless(large, [(b.float, near[0]), (b.int, near[1])], lambda: _far(d, wide))
    return rest, quarters


def _sine(b: Body, rest: Value, square: Value) -> Value:
    return b.multiply_add(rest * square, b.polynomial(square, *_SIN_TAIL), rest)


def _cosine(b: Body, square: Value) -> Value:
    tail = b.multiply_add(b.polynomial(square, *_COS_TAIL), square, -0.5)
    return b.multiply_add(tail, square, 1.0)


def _wave(b: Body, rest: Value, quarters: Value) -> Value:
    """sin(rest + quarters pi / 2)."""
    square = rest * rest
    odd = b.emit(f"icmp ne {b.int} {b.int_op('and', quarters, 1).name}, {b.integer(0)}")
    size = b.select(odd, _cosine(b, square), _sine(b, rest, square))
    sign = b.int_op("shl", b.int_op("and", quarters, 2), 30)
    return b.from_bits(b.int_op("xor", b.bits(size), sign))


def _sin(b: Body, x: Value) -> Value:
    return b.where("oeq", x, 0.0, x, _wave(b, *_reduced(b, x)))


def _cos(b: Body, x: Value) -> Value:
    rest, quarters = _reduced(b, x)
    return _wave(b, rest, b.int_op("add", quarters, 1))


def _tan(b: Body, x: Value) -> Value:
    """sin / cos of what is left of the argument, or -cos / sin after an odd number of quarter turns."""
    rest, quarters = _reduced(b, x)
    square = rest * rest
    odd = b.emit(f"icmp ne {b.int} {b.int_op('and', quarters, 1).name}, {b.integer(0)}")
    sine, cosine = _sine(b, rest, square), _cosine(b, square)
    slope = b.select(odd, -cosine, sine) / b.select(odd, sine, cosine)
    return b.where("oeq", x, 0.0, x, slope)


FUNCTIONS: dict[str, Definition] = {"sin": _sin, "cos": _cos, "tan": _tan}
