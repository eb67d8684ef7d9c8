"""x^y for any x and y: 2^(y log2 |x|), with the logarithm and the product in float64."""

from __future__ import annotations

import math

from autocast.kernels.targets.cpu.vector.doubles import Doubles
from autocast.kernels.targets.cpu.vector.exponentials import LN2, exp_of_rest
from autocast.kernels.targets.cpu.vector.function_body import Body, Definition, Value
from autocast.kernels.targets.cpu.vector.logarithms import parts

#: log2((1 + s) / (1 - s)) / s as a polynomial of s^2, the highest power first; below sqrt(2) its error is 2^-44.
_LOG2 = tuple(2 / (LN2 * (2 * k + 1)) for k in reversed(range(8)))

#: Powers of two beyond these are 0 and infinity.
_BOUND = 250.0


def _power(b: Body, x: Value, y: Value) -> Value:
    """The power as C defines it: for zeros and infinities by their signs, NaN for roots of negative numbers."""
    size = b.absolute(x)
    result = _of_size(b, size, y)
    # Zero and infinity become each other or themselves.
    vanishes = b.emit(f"xor {b.bool} {b.compare('ogt', size, 1.0).name}, {b.compare('ogt', y, 0.0).name}")
    at_limit = b.select(vanishes, 0.0, math.inf)
    result = b.where("oeq", size, 0.0, at_limit, b.where("oeq", size, math.inf, at_limit, result))
    result = b.where("oeq", size, 1.0, 1.0, result)
    half = y * 0.5
    is_whole, is_even = (b.compare("oeq", b.intrinsic("floor", value), value) for value in (y, half))
    odd = b.emit(f"and {b.bool} {is_whole.name}, {b.emit(f'xor {b.bool} {is_even.name}, {b.truth}').name}")
    result = b.select(odd, b.with_sign_of(result, x), result)
    root = b.emit(f"and {b.bool} {b.compare('olt', x, 0.0).name}, {b.compare('ogt', x, -math.inf).name}")
    root = b.emit(f"and {b.bool} {root.name}, {b.emit(f'xor {b.bool} {is_whole.name}, {b.truth}').name}")
    result = b.select(root, math.nan, result)
    result = b.where("uno", x, y, x + y, result)
    return b.where("oeq", y, 0.0, 1.0, b.where("oeq", x, 1.0, 1.0, result))


def _of_size(b: Body, size: Value, y: Value) -> Value:
    """The power of a positive, finite number, for any y."""
    d = Doubles(b)
    mantissa, exponent = parts(b, size)
    wide = d.widened(mantissa)
    ratio = d.op("fdiv", d.op("fsub", wide, 1.0), d.op("fadd", wide, 1.0))
    square = d.op("fmul", ratio, ratio)
    series: Value | float = _LOG2[0]
    for coefficient in _LOG2[1:]:
        series = d.intrinsic("fmuladd", series, square, coefficient)
    logarithm = d.intrinsic("fmuladd", ratio, series, d.widened(exponent))
    product = d.op("fmul", logarithm, d.widened(y))
    for comparison, bound in (("ogt", _BOUND), ("olt", -_BOUND)):
        beyond = b.emit(f"fcmp {comparison} {d.type} {product.name}, {d.operand(bound)}")
        product = b.emit(f"select {b.bool} {beyond.name}, {d.type} {d.operand(bound)}, {d.type} {product.name}")
    whole = d.intrinsic("rint", product)
    rest = d.narrowed(d.op("fmul", d.op("fsub", product, whole), LN2))
    return b.scale(exp_of_rest(b, rest), d.narrowed(whole))


FUNCTIONS: dict[str, Definition] = {"power": _power}
