"""asin, acos, atan and atan2: polynomials near zero, and what is left of a right angle elsewhere."""

from __future__ import annotations

from autocast.kernels.targets.cpu.vector.function_body import Body, Definition, Value

#: pi / 2 in two parts, of which the first is a float32.
_RIGHT, _RIGHT_LOW = 1.5707963705062866, -4.371139006309477e-08

#: (atan(z) - z) / z^3 as a polynomial of z^2 for z <= 1, the highest power first; relative error of atan: 2^-28.
_ATAN_TAIL = (
    -0.0017935589539487566,
    0.010914324227428648,
    -0.03117732010640924,
    0.05795706483620695,
    -0.08403419408799125,
    0.10952175198220906,
    -0.14264239665655895,
    0.19998548096507335,
    -0.3333329908299056,
)

#: The same of asin for z <= 1 / 2; relative error: 2^-27.
_ASIN_TAIL = (
    0.04216625890335337,
    0.024179540816031936,
    0.0454703717094086,
    0.07495297661956153,
    0.16666752482296093,
)


def _left_of(b: Body, right_angles: int, angle: Value) -> Value:
    """One or two right angles minus `angle`."""
    return -angle + right_angles * _RIGHT + right_angles * _RIGHT_LOW


def _asin_by_half(b: Body, size: Value) -> tuple[Value, Value]:
    """(large, angle): asin(size), or where it is large half of what it lacks of a right angle, by half of 1 - size."""
    half = (-size + 1.0) * 0.5
    large = b.compare("ogt", size, 0.5)
    square = b.select(large, half, size * size)
    root = b.select(large, b.intrinsic("sqrt", half), size)
    return large, b.multiply_add(root * square, b.polynomial(square, *_ASIN_TAIL), root)


def _asin(b: Body, x: Value) -> Value:
    large, angle = _asin_by_half(b, b.absolute(x))
    return b.with_sign_of(b.select(large, _left_of(b, 1, angle + angle), angle), x)


def _acos(b: Body, x: Value) -> Value:
    large, angle = _asin_by_half(b, b.absolute(x))
    twice = angle + angle
    far = b.where("olt", x, 0.0, _left_of(b, 2, twice), twice)
    return b.select(large, far, _left_of(b, 1, b.with_sign_of(angle, x)))


def _atan_below_one(b: Body, z: Value) -> Value:
    square = z * z
    return b.multiply_add(z * square, b.polynomial(square, *_ATAN_TAIL), z)


def _atan(b: Body, x: Value) -> Value:
    size = b.absolute(x)
    steep = b.compare("ogt", size, 1.0)
    angle = _atan_below_one(b, b.select(steep, 1.0 / size, size))
    return b.with_sign_of(b.select(steep, _left_of(b, 1, angle), angle), x)


def _atan2(b: Body, y: Value, x: Value) -> Value:
    """The angle of the point (x, y): that of its sizes, then of its quadrant."""
    height, width = b.absolute(y), b.absolute(x)
    steep = b.compare("ogt", height, width)
    smaller, larger = b.select(steep, width, height), b.select(steep, height, width)
    ratio = b.where("oeq", larger, 0.0, 0.0, smaller / larger)
    angle = _atan_below_one(b, b.where("oeq", smaller, float("inf"), 1.0, ratio))
    angle = b.select(steep, _left_of(b, 1, angle), angle)
    negative = b.emit(f"icmp slt {b.int} {b.bits(x).name}, {b.integer(0)}")
    angle = b.with_sign_of(b.select(negative, _left_of(b, 2, angle), angle), y)
    return b.where("uno", x, y, x + y, angle)


FUNCTIONS: dict[str, Definition] = {"asin": _asin, "acos": _acos, "atan": _atan, "atan2": _atan2}
