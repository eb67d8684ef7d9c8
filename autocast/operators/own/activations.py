"""Backward operators of activations: the adjoint `g` of the result, times the slope at `x` (or at the result `y`).

And hardtanh, which is a clip with a slope of its own: none at the bounds."""

from __future__ import annotations

import math

from tvm import relax

from autocast.operators.operator import Expansion, define, like

op = relax.op

_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
#: gelu_tanh(x) = x / 2 (1 + tanh(_ROOT (x + _CUBIC x^3)))
_ROOT, _CUBIC = math.sqrt(2 / math.pi), 0.044715


def _hardtanh(e: Expansion) -> relax.Expr:
    return op.clip(e.operands[0], float(e.call.attrs["low"]), float(e.call.attrs["high"]))


def _relu(e: Expansion) -> relax.Expr:
    """Of NaN, too, as torch has it: what is not a number does not become one on the way back."""
    y, g = e.operands
    return op.where(op.less_equal(y, e.number(0.0)), e.number(0.0), g)


def _gelu(e: Expansion) -> relax.Expr:
    """With the distribution and the density of the normal distribution: g (Phi(x) + x phi(x))."""
    x, g = e.operands
    distribution = e.number(0.5) + e.number(0.5) * op.erf(e.number(math.sqrt(0.5)) * x)
    density = e.number(1 / math.sqrt(2 * math.pi)) * op.exp(e.number(-0.5) * x * x)
    return g * (distribution + x * density)


def _gelu_tanh(e: Expansion) -> relax.Expr:
    x, g = e.operands
    square = e.emit(x * x)
    t = e.emit(op.tanh(e.number(_ROOT) * x * (e.number(1.0) + e.number(_CUBIC) * square)))
    inner = e.number(_ROOT) * (e.number(1.0) + e.number(3 * _CUBIC) * square)
    return g * e.number(0.5) * (e.number(1.0) + t + x * (e.number(1.0) - t * t) * inner)


def _silu(e: Expansion) -> relax.Expr:
    x, g = e.operands
    s = e.emit(op.sigmoid(x))
    return g * s * (e.number(1.0) + x * (e.number(1.0) - s))


def _selu(e: Expansion) -> relax.Expr:
    x, g = e.operands
    # The branch that is not taken is computed too, and must not overflow.
    negative = e.number(_SELU_SCALE * _SELU_ALPHA) * op.exp(op.minimum(x, e.number(0.0)))
    return g * op.where(op.greater(x, e.number(0.0)), e.number(_SELU_SCALE), negative)


def _leakyrelu(e: Expansion) -> relax.Expr:
    x, g = e.operands
    return op.where(op.greater(x, e.number(0.0)), g, e.number(float(e.call.attrs.alpha)) * g)


def _softplus(e: Expansion) -> relax.Expr:
    """Beyond the threshold softplus is the identity."""
    x, g = e.operands
    beta, threshold = float(e.call.attrs.beta), float(e.call.attrs.threshold)
    scaled = e.emit(e.number(beta) * x)
    return op.where(op.greater(scaled, e.number(threshold)), g, g * op.sigmoid(scaled))


def _sigmoid(e: Expansion) -> relax.Expr:
    y, g = e.operands
    return g * y * (e.number(1.0) - y)


def _tanh(e: Expansion) -> relax.Expr:
    y, g = e.operands
    return g * (e.number(1.0) - y * y)


hardtanh = define(
    "relax.nn.hardtanh",
    "x",
    result=like(0),
    expand=_hardtanh,
    summary="x between the attributes low and high, as clip has it; the slope is 0 at both, as in torch",
)
relu_backward = define(
    "relax.grad.relu_backward",
    "y g",
    result=like(1),
    expand=_relu,
    summary="0 where the result y is 0 or less, else g",
)
gelu_backward = define(
    "relax.grad.gelu_backward", "x g", result=like(1), expand=_gelu, summary="g times the slope of gelu at x"
)
gelu_tanh_backward = define(
    "relax.grad.gelu_tanh_backward", "x g", result=like(1), expand=_gelu_tanh, summary="g times the slope of gelu_tanh"
)
silu_backward = define(
    "relax.grad.silu_backward", "x g", result=like(1), expand=_silu, summary="g times the slope of silu at x"
)
selu_backward = define(
    "relax.grad.selu_backward", "x g", result=like(1), expand=_selu, summary="g times the slope of selu at x"
)
leakyrelu_backward = define(
    "relax.grad.leakyrelu_backward",
    "x g",
    result=like(1),
    expand=_leakyrelu,
    summary="g where x is positive, else alpha g",
    attributes="relax.attrs.LeakyReluAttrs",
)
softplus_backward = define(
    "relax.grad.softplus_backward",
    "x g",
    result=like(1),
    expand=_softplus,
    summary="g times the slope of softplus at x",
    attributes="relax.attrs.SoftplusAttrs",
)
sigmoid_backward = define(
    "relax.grad.sigmoid_backward", "y g", result=like(1), expand=_sigmoid, summary="g y (1 - y), where y = sigmoid(x)"
)
tanh_backward = define(
    "relax.grad.tanh_backward", "y g", result=like(1), expand=_tanh, summary="g (1 - y^2), where y = tanh(x)"
)
