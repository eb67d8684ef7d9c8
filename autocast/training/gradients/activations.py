"""Activations: the adjoint times the slope, each one backward operator."""

from __future__ import annotations

from tvm.relax import op

from autocast.ir import shape_of
from autocast.operators import own
from autocast.operators.own import Operator
from autocast.training.gradients.registry import Adjoint, Backward, GradientRule, gradient
from autocast.training.gradients.shapes import number


def _of_argument(backward: Operator) -> GradientRule:
    """The rule of an activation whose slope is computed from its argument."""
    return lambda b: [backward(b.call.args[0], b.adjoint, attrs=b.call.attrs)]


def _relu(b: Backward) -> list[Adjoint]:
    """From the result, which is kept anyway, for the product that reads it."""
    return [own.relu_backward(b.result, b.adjoint)]


def _prelu(b: Backward) -> list[Adjoint]:
    x, alpha = b.call.args
    shape = shape_of(x) or ()
    axis = int(b.call.attrs.axis) % len(shape)
    zero = number(0.0, x)
    is_positive = b.emit(op.greater(x, zero))
    factor = op.reshape(alpha, [size if at == axis else 1 for at, size in enumerate(shape)])
    others = [at for at in range(len(shape)) if at != axis]
    return [
        op.where(is_positive, b.adjoint, b.adjoint * factor) if b.needs[0] else None,
        op.sum(op.where(is_positive, zero, b.adjoint * x), others) if b.needs[1] else None,
    ]


RULES = (
    gradient("relax.nn.relu", _relu, why="1 where y > 0, else 0; 0 at 0, as in torch"),
    gradient("relax.nn.gelu", _of_argument(own.gelu_backward), why="Phi(x) + x phi(x)"),
    gradient("relax.nn.gelu_tanh", _of_argument(own.gelu_tanh_backward), why="that of its formula"),
    gradient("relax.nn.silu", _of_argument(own.silu_backward), why="s (1 + x (1 - s)), where s = sigmoid(x)"),
    gradient("relax.nn.selu", _of_argument(own.selu_backward), why="scale where x > 0, else scale alpha exp(x)"),
    gradient("relax.nn.leakyrelu", _of_argument(own.leakyrelu_backward), why="1 where x > 0, else alpha"),
    gradient("relax.nn.softplus", _of_argument(own.softplus_backward), why="sigmoid(beta x); 1 past threshold"),
    gradient("relax.nn.prelu", _prelu, why="1 or alpha; for alpha the sum of the negative x, channel by channel"),
)
