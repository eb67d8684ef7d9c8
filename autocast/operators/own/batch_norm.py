"""Batch normalization in training mode, and its backward operator: statistics of each channel over a batch.

With c = x - mean and r = 1 / sqrt(variance + epsilon), the result is gamma r c + beta, and the adjoint of x is
gamma r (g - mean(g) - c r^2 mean(g c)): what changes mean and variance does not pass. Both directions write the
statistics in the same way, so that they are computed once.

Source: Ioffe and Szegedy, "Batch Normalization", 2015. The next running statistics are (1 - momentum) * running +
momentum * batch; the variance is the biased one, as everywhere in Relax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tvm import relax

from autocast.ir.views import dtype_of, shape_of
from autocast.operators.operator import Expansion, define, like

op = relax.op

Emit = Callable[[relax.Expr], relax.Var]


class Batch(NamedTuple):
    """Statistics of a batch: vectors over channels; `others` are the axes that are summed."""

    others: list[int]
    count: relax.Expr
    mean: relax.Var
    variance: relax.Var
    reciprocal: relax.Var
    centered: relax.Var


def others_of(x: relax.Expr, attributes: relax.Expr) -> list[int]:
    """The axes of `x` that are summed: all but that of the channels."""
    rank = len(shape_of(x) or ())
    return [axis for axis in range(rank) if axis != int(attributes.axis) % rank]


def local_statistics(emit: Emit, x: relax.Expr, attributes: relax.Expr) -> tuple[relax.Var, relax.Var]:
    """Mean and variance of each channel of `x`."""
    others = others_of(x, attributes)
    return emit(op.mean(x, others)), emit(op.variance(x, others))


def batch_of(emit: Emit, x: relax.Expr, attributes: relax.Expr, mean: relax.Var, variance: relax.Var) -> Batch:
    """`x` with the statistics that it is normalized by."""
    others, dtype = others_of(x, attributes), dtype_of(x)
    return Batch(
        others,
        elements_of(emit, x, attributes),
        mean,
        variance,
        emit(op.rsqrt(variance + relax.const(float(attributes.epsilon), dtype))),
        emit(x - op.expand_dims(mean, others)),
    )


def elements_of(emit: Emit, x: relax.Expr, attributes: relax.Expr) -> relax.Expr:
    """How many elements a channel of `x` has, as a literal where it is known now."""
    shape, dtype = shape_of(x) or (), dtype_of(x)
    extents = [shape[axis] for axis in others_of(x, attributes)]
    if all(isinstance(extent, int) for extent in extents):
        return relax.const(float(math.prod(extents)), dtype)
    numbers = emit(op.shape_to_tensor(relax.ShapeExpr([math.prod(extents[1:], start=extents[0])])))
    return emit(op.reshape(op.astype(numbers, dtype), []))


def normalize_batch(emit: Emit, call: relax.Call, *operands: relax.Expr) -> relax.Tuple:
    """`relax.nn.batch_norm` in training mode: the result, and the next running mean and variance."""
    batch = batch_of(emit, operands[0], call.attrs, *local_statistics(emit, operands[0], call.attrs))
    return relax.Tuple(normalized(emit, call.attrs, batch, *operands))


def normalized(
    emit: Emit,
    attributes: relax.Expr,
    batch: Batch,
    x: relax.Expr,
    gamma: relax.Expr,
    beta: relax.Expr,
    running_mean: relax.Expr,
    running_variance: relax.Expr,
) -> list[relax.Expr]:
    """`x` normalized by the statistics of `batch`, and the next running mean and variance."""
    dtype = dtype_of(x)
    factor = emit(gamma * batch.reciprocal) if attributes.scale else batch.reciprocal
    result = emit(batch.centered * op.expand_dims(factor, batch.others))
    if attributes.center:
        result = emit(result + op.expand_dims(beta, batch.others))
    momentum = float(attributes.momentum)

    def moved(running: relax.Expr, now: relax.Expr) -> relax.Var:
        return emit(running * relax.const(1 - momentum, dtype) + now * relax.const(momentum, dtype))

    return [result, moved(running_mean, batch.mean), moved(running_variance, batch.variance)]


def adjoints(
    emit: Emit,
    attributes: relax.Expr,
    batch: Batch,
    gamma: relax.Expr,
    g: relax.Expr,
    over_ranks: Callable[..., Sequence[relax.Expr]] = lambda *sums_and_count: sums_and_count,
) -> list[relax.Expr]:
    """The adjoints of data, scale and offset; those of the data by what `over_ranks` makes of both sums of `g`, and of
    the number of elements."""
    total = emit(op.sum(g, batch.others))
    along = emit(op.sum(g * batch.centered, batch.others))
    factor = emit(gamma * batch.reciprocal) if attributes.scale else batch.reciprocal
    of_mean, of_variance, count = over_ranks(total, along, batch.count)
    slope = emit(of_variance * batch.reciprocal * batch.reciprocal / count)
    mean, slope, factor = (
        emit(op.expand_dims(vector, batch.others)) for vector in (emit(of_mean / count), slope, factor)
    )
    return [(g - mean - batch.centered * slope) * factor, along * batch.reciprocal, total]


def _backward(e: Expansion) -> list[relax.Expr]:
    x, gamma, g = e.operands
    batch = batch_of(e.emit, x, e.call.attrs, *local_statistics(e.emit, x, e.call.attrs))
    return adjoints(e.emit, e.call.attrs, batch, gamma, g)


batch_norm_backward = define(
    "relax.grad.batch_norm_backward",
    "x gamma g",
    result=like(0, 1, 1),
    expand=_backward,
    summary="The adjoints of the data, scale and offset of batch_norm in training mode",
    attributes="relax.attrs.BatchNormAttrs",
)
