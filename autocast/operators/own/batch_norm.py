"""Batch normalization in training mode, and its backward operator: statistics of each channel over a batch.

With c = x - mean and r = 1 / sqrt(variance + epsilon), the result is gamma r c + beta, and the adjoint of x is
gamma r (g - mean(g) - c r^2 mean(g c)): what changes mean and variance does not pass. Both directions write the
statistics in the same way, so that they are computed once.

Source: Ioffe and Szegedy, "Batch Normalization", 2015. The next running statistics are (1 - momentum) * running +
momentum * batch; the variance is the biased one, as everywhere in Relax.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from tvm import relax

from autocast.ir.views import dtype_of, shape_of
from autocast.operators.operator import Expansion, define, like

op = relax.op

Emit = Callable[[relax.Expr], relax.Var]


class _Batch(NamedTuple):
    """Statistics of a batch: vectors over channels; `others` are the axes that are summed."""

    others: list[int]
    count: relax.Expr
    mean: relax.Var
    variance: relax.Var
    reciprocal: relax.Var
    centered: relax.Var


def _statistics(emit: Emit, x: relax.Expr, attributes: relax.Expr) -> _Batch:
    shape, dtype = shape_of(x) or (), dtype_of(x)
    others = [axis for axis in range(len(shape)) if axis != int(attributes.axis) % len(shape)]
    mean, variance = emit(op.mean(x, others)), emit(op.variance(x, others))
    return _Batch(
        others,
        _count(emit, [shape[axis] for axis in others], dtype),
        mean,
        variance,
        emit(op.rsqrt(variance + relax.const(float(attributes.epsilon), dtype))),
        emit(x - op.expand_dims(mean, others)),
    )


def _count(emit: Emit, extents: list, dtype: str | None) -> relax.Expr:
    """How many elements a channel has, as a literal where it is known now."""
    if all(isinstance(extent, int) for extent in extents):
        return relax.const(float(math.prod(extents)), dtype)
    numbers = emit(op.shape_to_tensor(relax.ShapeExpr([math.prod(extents[1:], start=extents[0])])))
    return emit(op.reshape(op.astype(numbers, dtype), []))


def normalize_batch(emit: Emit, call: relax.Call, *operands: relax.Expr) -> relax.Tuple:
    """`relax.nn.batch_norm` in training mode: the result, and the next running mean and variance."""
    x, gamma, beta, running_mean, running_variance = operands
    batch, dtype = _statistics(emit, x, call.attrs), dtype_of(x)
    factor = emit(gamma * batch.reciprocal) if call.attrs.scale else batch.reciprocal
    result = emit(batch.centered * op.expand_dims(factor, batch.others))
    if call.attrs.center:
        result = emit(result + op.expand_dims(beta, batch.others))
    momentum = float(call.attrs.momentum)

    def moved(running: relax.Expr, now: relax.Expr) -> relax.Var:
        return emit(running * relax.const(1 - momentum, dtype) + now * relax.const(momentum, dtype))

    return relax.Tuple([result, moved(running_mean, batch.mean), moved(running_variance, batch.variance)])


def _backward(e: Expansion) -> list[relax.Expr]:
    x, gamma, g = e.operands
    batch = _statistics(e.emit, x, e.call.attrs)
    total = e.emit(op.sum(g, batch.others))
    along = e.emit(op.sum(g * batch.centered, batch.others))
    factor = e.emit(gamma * batch.reciprocal) if e.call.attrs.scale else batch.reciprocal
    slope = e.emit(along * batch.reciprocal * batch.reciprocal / batch.count)
    mean, slope, factor = (
        e.emit(op.expand_dims(vector, batch.others)) for vector in (e.emit(total / batch.count), slope, factor)
    )
    return [(g - mean - batch.centered * slope) * factor, along * batch.reciprocal, total]


batch_norm_backward = define(
    "relax.grad.batch_norm_backward",
    "x gamma g",
    result=like(0, 1, 1),
    expand=_backward,
    summary="The adjoints of the data, scale and offset of batch_norm in training mode",
    attributes="relax.attrs.BatchNormAttrs",
)
