"""exp and what is made of it: sigmoid, tanh, erf, and the activations of neural networks."""

from __future__ import annotations

from autocast.kernels.vector.function_body import Body, Definition, Value

_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # the first has 9 bits: n * high is exact for every n that occurs
_ROUND_MAGIC = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer, kept in the low bits of the sum
_SQRT_2_OVER_PI = 0.7978845608028654
_SQRT_HALF = 0.7071067811865476


def _exp_parts(b: Body, x: Value) -> tuple[Value, Value]:
    """(p, n) with exp(x) = p * 2^n and p between 0.7 and 1.42, for |x| below 2^21."""
    shifted = b.multiply_add(x, _LOG2_E, _ROUND_MAGIC)
    n = b.int_op("sub", b.bits(shifted), 0x4B400000)
    whole = shifted - _ROUND_MAGIC
    rest = b.multiply_add(whole, -_LN2_LOW, b.multiply_add(whole, -_LN2_HIGH, x))
    tail = b.polynomial(
        rest, 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1
    )
    return b.multiply_add(tail, rest * rest, rest) + 1.0, n


def _exp(b: Body, x: Value) -> Value:
    # Comparisons are written so that a NaN passes through.
    x = b.where("ogt", x, 89.0, 89.0, x)
    x = b.where("olt", x, -104.0, -104.0, x)
    p, n = _exp_parts(b, x)
    half = b.int_op("ashr", n, 1)
    return p * b.power_of_two(half) * b.power_of_two(b.int_op("sub", n, half))


def _exp_of_negative(b: Body, x: Value) -> Value:
    """exp(x) for x <= 0 or NaN, e^-87 below -87: cheaper than `_exp`, for what is then added to 1."""
    p, n = _exp_parts(b, b.where("olt", x, -87.0, -87.0, x))
    return p * b.power_of_two(n)


def _sigmoid(b: Body, x: Value) -> Value:
    small = _exp(b, -b.absolute(x))
    return b.where("olt", x, 0.0, small, 1.0) / (small + 1.0)


def _silu(b: Body, x: Value) -> Value:
    return x * _sigmoid(b, x)


def _tanh(b: Body, x: Value) -> Value:
    """A polynomial near zero, (1 - e) / (1 + e) with e = exp(-2 |x|) elsewhere."""
    size, square = b.absolute(x), x * x
    near = b.polynomial(
        square, -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1
    )
    near = b.multiply_add(near * square, x, x)
    decay = _exp_of_negative(b, size * -2.0)
    far = (-decay + 1.0) / (decay + 1.0)
    return b.with_sign_of(b.where("olt", size, 0.625, near, far), x)  # near gives +0 for -0


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
    far = -_exp_of_negative(b, b.multiply_add(far, size, -size)) + 1.0
    near = b.polynomial(
        square, -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1
    )
    near = b.multiply_add(near, x, x)
    return b.where("ogt", size, 0.927734375, b.with_sign_of(far, x), near)


def _gelu(b: Body, x: Value) -> Value:
    half = x * 0.5
    return b.multiply_add(half, _erf(b, x * _SQRT_HALF), half)


def _gelu_tanh(b: Body, x: Value) -> Value:
    """x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), the same as the form with tanh."""
    inner = b.multiply_add(x * x, 2 * _SQRT_2_OVER_PI * 0.044715, 2 * _SQRT_2_OVER_PI)
    return x * _sigmoid(b, x * inner)


FUNCTIONS: dict[str, Definition] = {
    "exp": _exp,
    "erf": _erf,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
}
