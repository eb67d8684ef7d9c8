"""Cross entropy of logits and labels as one operator, and its gradient.

Neither keeps probabilities: the gradient computes them from the logits again, so that a kernel of rows reads logits
once for both. `softmax - onehot` also has the digits that a gradient through log_softmax loses.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from autocast.errors import IllFormedModuleError
from autocast.ir.views import dtype_of, same_shape, shape_of
from autocast.operators.operator import Expansion, define, like, wide_dtype

op = relax.op

REDUCTIONS = ("mean", "sum", "none")


def _classes(logits: relax.Expr) -> Any:
    return (shape_of(logits) or (None,))[-1]


def _result(call: relax.Call) -> tvm.ir.Type:
    """One number, or one for each label, in float32; an error where logits, labels and attributes do not fit."""
    logits, labels = (shape_of(operand) for operand in call.args[:2])
    fits = logits is not None and len(logits) > 0 and same_shape(logits[:-1], labels)
    if not fits or not str(dtype_of(call.args[1])).startswith("int"):
        raise IllFormedModuleError(
            f"relax.nn.cross_entropy: got logits {call.args[0].ty} and labels {call.args[1].ty}, expected logits of "
            "the shape (..., classes) and integer labels of the shape (...); reshape the labels"
        )
    if call.attrs.reduction not in REDUCTIONS:
        raise IllFormedModuleError(
            f"relax.nn.cross_entropy: got reduction={call.attrs.reduction!r}, expected one of {', '.join(REDUCTIONS)}"
        )
    if float(call.attrs.label_smoothing) > 0 and not isinstance(_classes(call.args[0]), int):
        raise IllFormedModuleError(
            f"relax.nn.cross_entropy: got logits {call.args[0].ty}, expected a number of classes that is known now: "
            "labels are smoothed over all of them"
        )
    return relax.TensorType(labels if call.attrs.reduction == "none" else (), wide_dtype(call.args[0]))


def _places(logits: relax.Expr, labels: relax.Expr, e: Expansion) -> tuple[relax.Expr, relax.Expr]:
    """Where a column is the label of its row, and, with one column, which labels count."""
    dtype = dtype_of(labels)
    labels = e.emit(op.expand_dims(labels, -1))
    columns = op.arange(0, _classes(logits), 1, dtype)
    ignored = relax.const(int(e.call.attrs.ignore_index), dtype)
    return op.equal(columns, labels), e.emit(op.not_equal(labels, ignored))


def _count(valid: relax.Expr, e: Expansion) -> relax.Expr:
    return op.sum(op.astype(valid, wide_dtype(e.operands[0])))


def _spread(e: Expansion) -> tuple[float, float]:
    """The probability of the label less that of any other class, and the latter, after smoothing."""
    smoothing = float(e.call.attrs.label_smoothing)
    return 1 - smoothing, smoothing / _classes(e.operands[0]) if smoothing else 0.0


def _cross_entropy(e: Expansion) -> relax.Expr:
    logits, labels = e.operands
    here, valid = _places(logits, labels, e)
    certain, uniform = _spread(e)
    logarithms = e.emit(op.nn.log_softmax(logits, -1))
    losses = op.sum(op.where(here, logarithms, e.number(0.0)), -1, keepdims=True)
    if uniform:
        losses = e.number(certain) * losses + e.number(uniform) * op.sum(logarithms, -1, keepdims=True)
    losses = e.emit(op.where(valid, op.negative(losses), e.number(0.0)))
    if e.call.attrs.reduction == "none":
        return op.squeeze(losses, [-1])
    total = op.sum(losses)
    return total / _count(valid, e) if e.call.attrs.reduction == "mean" else total


def _cross_entropy_backward(e: Expansion) -> relax.Expr:
    logits, labels, g = e.operands
    here, valid = _places(logits, labels, e)
    certain, uniform = _spread(e)
    targets = op.where(here, e.number(certain + uniform), e.number(uniform))
    if e.call.attrs.reduction == "none":
        g = op.expand_dims(g, -1)
    elif e.call.attrs.reduction == "mean":
        g = g / _count(valid, e)
    return (op.nn.softmax(logits, -1) - targets) * op.where(valid, g, e.number(0.0))


cross_entropy = define(
    "relax.nn.cross_entropy",
    "logits labels",
    result=_result,
    expand=_cross_entropy,
    summary="-log softmax(logits)[label], with attributes ignore_index, label_smoothing and reduction",
)
cross_entropy_backward = define(
    "relax.grad.cross_entropy_backward",
    "logits labels g",
    result=like(0),
    expand=_cross_entropy_backward,
    summary="(softmax(logits) - onehot(label)) g, with the attributes of cross_entropy",
)
