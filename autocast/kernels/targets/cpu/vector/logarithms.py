"""log and what is made of it: log of 1 + x, of sums of exponentials."""

from __future__ import annotations

from autocast.kernels.targets.cpu.vector.exponentials import LN2_HIGH, LN2_LOW, exp
from autocast.kernels.targets.cpu.vector.function_body import Body, Definition, Value

#: sqrt(1/2) as the bits of a float32, and how many of these are the mantissa's.
_SQRT_HALF_BITS, _MANTISSA_BITS = 0x3F3504F3, 23

#: (log(1 + f) - f + f^2 / 2) / f^3 between sqrt(1/2) - 1 and sqrt(2) - 1, the highest power first; error 2^-30.
_LOG_TAIL = (
    0.06747242238443867,
    -0.11675913060550287,
    0.11888040027270382,
    -0.12405538368374314,
    0.14219561438721642,
    -0.16667998919686436,
    0.200021183707871,
    -0.2500000954373765,
    0.3333331260699177,
)


def _log_of_product(b: Body, fraction: Value, exponent: Value) -> Value:
    """log((1 + fraction) * 2^exponent) for 1 + fraction from sqrt(1/2) to sqrt(2)."""
    square = fraction * fraction
    tail = b.polynomial(fraction, *_LOG_TAIL) * fraction
    tail = b.multiply_add(square, tail, exponent * LN2_LOW)
    tail = b.multiply_add(square, -0.5, tail)
    return b.multiply_add(exponent, LN2_HIGH, fraction + tail)


def _exponent(b: Body, x: Value) -> Value:
    """The integer e for which x / 2^e is from sqrt(1/2) to sqrt(2), for positive normal x."""
    return b.int_op("ashr", b.int_op("sub", b.bits(x), _SQRT_HALF_BITS), _MANTISSA_BITS)


def _at_the_limits(b: Body, x: Value, zero_at: float, result: Value) -> Value:
    """`result` for finite x > zero_at; -infinity there, NaN below, infinity and NaN as they are."""
    below = b.where("olt", x, zero_at, float("nan"), b.where("oeq", x, zero_at, float("-inf"), x))
    inside = b.emit(f"and {b.bool} {b.compare('ogt', x, zero_at).name}, {b.compare('olt', x, float('inf')).name}")
    return b.select(inside, result, below)


def parts(b: Body, x: Value) -> tuple[Value, Value]:
    """(m, e) with x = m 2^e and m from sqrt(1/2) to sqrt(2), for positive finite x; both as float32."""
    tiny = b.compare("olt", x, 2.0**-126)
    normal = b.select(tiny, x * 2.0**25, x)
    exponent = _exponent(b, normal)
    mantissa = b.from_bits(b.int_op("sub", b.bits(normal), b.int_op("shl", exponent, _MANTISSA_BITS)))
    whole = b.to_float(exponent)
    return mantissa, b.select(tiny, whole - 25.0, whole)


def _log(b: Body, x: Value) -> Value:
    mantissa, exponent = parts(b, x)
    return _at_the_limits(b, x, 0.0, _log_of_product(b, mantissa - 1.0, exponent))


def log1p(b: Body, x: Value) -> Value:
    """log(1 + x), with the fraction rounded once: 2^-e is exact, and so is 2^-e - 1 as far as it matters."""
    exponent = _exponent(b, x + 1.0)
    # 2^(2 - e) instead of 2^-e, which is subnormal for the largest e.
    scale = b.from_bits(b.int_op("shl", b.int_op("sub", 129, exponent), _MANTISSA_BITS))
    fraction = b.multiply_add(scale, x * 0.25, scale * 0.25 - 1.0)
    result = _log_of_product(b, fraction, b.to_float(exponent))
    result = b.where("olt", b.absolute(x), 2.0**-25, x, result)
    return _at_the_limits(b, x, -1.0, result)


def _softplus(b: Body, x: Value) -> Value:
    """log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|)), which neither overflows nor cancels."""
    decay = exp(b, -b.absolute(x))
    return b.where("olt", x, 0.0, 0.0, x) + log1p(b, decay)


def _softplus_scaled(b: Body, x: Value, beta: Value, threshold: Value) -> Value:
    """softplus(beta x) / beta, which is x where beta x is above the threshold."""
    scaled = x * beta
    return b.where("ogt", scaled, threshold, x, _softplus(b, scaled) / beta)


def _log_add_exp(b: Body, x: Value, y: Value) -> Value:
    """The larger, plus log(1 + exp(-|x - y|)); equal infinities have no difference."""
    distance = b.where("oeq", x, y, 0.0, b.absolute(x - y))
    return b.where("ogt", x, y, x, y) + log1p(b, exp(b, -distance))


FUNCTIONS: dict[str, Definition] = {
    "log": _log,
    "log1p": log1p,
    "softplus": _softplus,
    "softplus_scaled": _softplus_scaled,
    "log_add_exp": _log_add_exp,
}
