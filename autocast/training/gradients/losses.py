"""Losses, from predictions or logits; labels get no gradient unless they are probabilities."""

from __future__ import annotations

from tvm import relax
from tvm.relax import op

from autocast.errors import GradientError
from autocast.ir import dtype_of
from autocast.operators import own
from autocast.training.gradients.registry import Adjoint, Backward, gradient
from autocast.training.gradients.shapes import known_shape, number


def _cross_entropy(b: Backward) -> list[Adjoint]:
    return [own.cross_entropy_backward(*b.call.args, b.adjoint, attrs=b.call.attrs), None]


def _cross_entropy_with_logits(b: Backward) -> list[Adjoint]:
    """-sum(predictions * labels) / rows; a vector is one row."""
    predictions, labels = b.call.args
    shape = known_shape(predictions)
    if len(shape) == 1:
        rows = number(1.0, b.result)
    elif isinstance(shape[0], int):
        rows = number(float(shape[0]), b.result)
    else:
        rows = op.sum(op.ones(relax.ShapeExpr(shape[:1]), dtype_of(b.result)))
    factor = b.emit(op.negative(b.adjoint / rows))
    return [factor * other if needed else None for other, needed in zip((labels, predictions), b.needs, strict=True)]


def _nll_loss(b: Backward) -> list[Adjoint]:
    attributes = b.call.attrs
    predictions, targets, *weights = b.call.args
    if any(b.needs[1:]):
        raise GradientError(
            f"relax.nn.nll_loss of {b.result.name}: got a demand for the gradient of its weights, which has no rule; "
            "train with constant weights"
        )
    adjoint = op.grad.nll_loss_backward(
        b.adjoint,
        predictions,
        targets,
        *weights,
        reduction=attributes.reduction,
        ignore_index=int(attributes.ignore_index),
    )
    return [adjoint, *[None] * (len(b.call.args) - 1)]


RULES = (
    gradient("relax.nn.cross_entropy", _cross_entropy, why="(softmax(logits) - onehot(label)) / number of labels"),
    gradient("relax.nn.cross_entropy_with_logits", _cross_entropy_with_logits, why="-labels / rows, -logits / rows"),
    gradient("relax.nn.nll_loss", _nll_loss, why="-weight in the target's column, over the sum of weights for a mean"),
)
