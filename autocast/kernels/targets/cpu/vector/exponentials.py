"""exp and what is made of it: sigmoid, tanh, erf, and the activations of neural networks."""

from __future__ import annotations

import math

from autocast.kernels.targets.cpu.vector.function_body import Body, Definition, Value

LOG2_E, LN2 = 1.4426950408889634, 0.6931471805599453
#: log(2) in two parts, of which the first has 9 bits: its product with any exponent is exact.
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
_SQRT_2_OVER_PI = 0.7978845608028654

#: scale (e^x - 1) below zero, scale x above, so that deep networks keep their mean and variance (Klambauer, 2017).
_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772

#: (exp(x) - 1 - x) / x^2 for |x| <= log(2) / 2, the highest power first; relative error of exp(x) - 1: 2^-26.
_EXP_TAIL = (
    0.0013882497042920915,
    0.008366691491422811,
    0.04166720524529164,
    0.16666542352521382,
    0.49999998125651607,
)

#: (2^x - 1) / x for |x| <= 1 / 2, the highest power first; error of 2^x: 2^-23.
_EXP2 = (
    0.0013264590904837718,
    0.009671619115165507,
    0.05550735032211069,
    0.24022240458850144,
    0.6931469763819306,
)

#: The same polynomial for e^x, |x| <= log(2) / 2.
_EXP_SHORT = tuple(c * LOG2_E**power for power, c in zip((5, 4, 3, 2, 1), _EXP2, strict=True))

#: What tiny numbers are multiplied by, not to be subnormal.
_LARGE = 2.0**64

#: log2((1 - P(x)) / P(x)) / x as a polynomial of x^2, P being the normal distribution; error of P: 2^-25.
_NORMAL_LOGIT = (
    -5.067237268473158e-09,
    3.816313169026961e-07,
    -1.1439834101995638e-05,
    0.00015957994228550773,
    9.404922010245705e-05,
    -0.104835121870527,
    -2.3022092964896803,
)


def _reduced(b: Body, x: Value) -> tuple[Value, Value]:
    """(r, n) with x = r + n log(2) and n an integer."""
    whole = b.nearest(x * LOG2_E)
    return b.multiply_add(whole, -LN2_LOW, b.multiply_add(whole, -LN2_HIGH, x)), whole


def exp_of_rest(b: Body, rest: Value) -> Value:
    """e^x for |x| <= log(2) / 2."""
    return b.polynomial(rest, *_EXP_TAIL, 1.0, 1.0)


def exp(b: Body, x: Value) -> Value:
    """e^x; beyond the bounds the result is infinity or 0, and they are infinite no more."""
    return _exp(b, b.where("ogt", x, 89.0, 89.0, x))


def _exp(b: Body, x: Value) -> Value:
    """e^x for x <= 89, or NaN."""
    rest, whole = _reduced(b, b.where("olt", x, -104.0, -104.0, x))
    return b.scale(exp_of_rest(b, rest), whole)


def exp_of_negative(b: Body, x: Value) -> Value:
    """e^x for x <= 0 or NaN, e^-87 below -87: for what is then added to 1."""
    rest, whole = _reduced(b, b.where("olt", x, -87.0, -87.0, x))
    return b.scale_normal(exp_of_rest(b, rest), whole)


def growth(b: Body, x: Value, factor: float = 1.0) -> Value:
    """`factor` (e^x - 1), where the factor is a power of two, for -30 <= x <= 88, or NaN."""
    rest, whole = _reduced(b, x)
    fraction = b.multiply_add(rest * rest, b.polynomial(rest, *_EXP_TAIL), rest)
    scale = b.scale_normal(1.0, whole if factor == 1.0 else whole + math.log2(factor))
    return b.multiply_add(fraction, scale, scale - factor)


def expm1(b: Body, x: Value) -> Value:
    """e^x - 1: half of it, which is finite wherever the result is, and the identity near zero."""
    bounded = b.where("olt", x, -30.0, -30.0, x)
    half = growth(b, b.where("ogt", bounded, 89.0, 89.0, bounded), 0.5)
    return b.where("olt", b.absolute(x), 2.0**-25, x, half + half)


def _sigmoid(b: Body, x: Value) -> Value:
    small = _exp(b, -b.absolute(x))
    return b.divide(b.where("olt", x, 0.0, small, 1.0), small + 1.0)


def _tanh(b: Body, x: Value) -> Value:
    """t / (t + 2) with t = exp(2 |x|) - 1; from 9.1 on the result is 1 in float32."""
    size = b.absolute(x)
    size = b.where("ogt", size, 9.1, 9.1, size)
    grown = growth(b, size + size)
    return b.with_sign_of(b.divide(grown, grown + 2.0), x)


def _erf(b: Body, x: Value) -> Value:
    """One polynomial near zero, 1 - exp of another elsewhere (Norbert Juffa's)."""
    # From 4 on the result is 1 in float32; the bound keeps the polynomial in its range.
    size, square = b.absolute(x), x * x
    size = b.where("ogt", size, 4.0, 4.0, size)
    bounded = b.where("ogt", square, 16.0, 16.0, square)
    high = b.multiply_add(-1.72853470e-5, size, 3.83197126e-4)
    low = b.multiply_add(-3.88396438e-3, size, 2.42546219e-2)
    far = b.multiply_add(high, bounded, low)
    for coefficient in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        far = b.multiply_add(far, size, coefficient)
    far = -exp_of_negative(b, b.multiply_add(far, size, -size)) + 1.0
    near = b.polynomial(
        square, -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1
    )
    near = b.multiply_add(near, x, x)
    return b.where("ogt", size, 0.927734375, b.with_sign_of(far, x), near)


def _silu(b: Body, x: Value) -> Value:
    """x / (1 + e^-x); of numbers below 0 with 2^64 e^x in place of e^x, which is subnormal from -87 on."""
    rest, whole = _reduced(b, b.negative_size(x, 150.0))
    decay = b.scale(b.polynomial(rest, *(_LARGE * c for c in _EXP_SHORT), _LARGE), whole)
    share = b.divide(1.0, decay + _LARGE)
    return b.where("olt", x, 0.0, x * decay, x) * b.where("uge", x, 0.0, share * _LARGE, share)


def _times_normal(b: Body, x: Value, logit: Value) -> Value:
    """x / (1 + 2^logit), as exact as x: the exponent has one part only. Nothing is larger than the result."""
    size = b.negative_size(logit, 151.0)
    whole = b.nearest(size)
    decay = b.scale(b.polynomial(size - whole, *_EXP2, 1.0), whole)
    return b.divide(b.where("olt", x, 0.0, x * decay, x), decay + 1.0)


def _gelu(b: Body, x: Value) -> Value:
    """x times the normal distribution, as a logistic function of an odd polynomial."""
    return _times_normal(b, x, x * b.polynomial(x * x, *_NORMAL_LOGIT))


def _gelu_tanh(b: Body, x: Value) -> Value:
    """x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), the same as the form with tanh."""
    factor = -2 * _SQRT_2_OVER_PI * LOG2_E
    return _times_normal(b, x, x * b.multiply_add(x * x, factor * 0.044715, factor))


def _selu(b: Body, x: Value) -> Value:
    return b.where("ogt", x, 0.0, x, expm1(b, x) * _SELU_ALPHA) * _SELU_SCALE


FUNCTIONS: dict[str, Definition] = {
    "exp": exp,
    "exp_nonpositive": _exp,
    "expm1": expm1,
    "erf": _erf,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "selu": _selu,
}
