"""Batch normalization by the statistics of all processes that train together, and its backward operator.

The means over ranks of (mean - running mean) and of variance + (mean - running mean)^2 are sent in one message, and
make mean and variance of all ranks' data. Squares of what is far from zero would cancel; the running mean, which is the
same on all ranks, is near. Backward, the means over ranks of both sums of the adjoint take another message; the sums of
this rank are its adjoints of scale and offset, which are averaged later.

Where the size of a batch is known when it comes, ranks may have batches of different sizes: each weighs by its
elements, whose number is sent along.

In one process it is what batch_norm is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import tvm
from tvm import relax

from autocast.ir.views import is_constant, static_shape
from autocast.operators.operator import Expansion, define, like
from autocast.operators.own.batch_norm import adjoints, batch_of, elements_of, local_statistics, normalized
from autocast.operators.own.collectives import expand_done, expand_start

op = relax.op


def _over_ranks(e: Expansion, first: relax.Expr, second: relax.Expr, elements: relax.Expr) -> Sequence[relax.Expr]:
    """The means over ranks of two vectors over channels, and of the number of elements, in one message."""
    is_known = is_constant(elements)  # and so the same on all ranks
    vectors = [first, second] if is_known else [first, second, elements]
    buffer = e.emit(expand_start(vectors))
    shapes = [list(static_shape(vector) or ()) for vector in vectors]
    means = [e.emit(mean) for mean in expand_done(e.emit, buffer, shapes, "float32")]
    return [*means, elements] if is_known else means


def _forward(e: Expansion) -> list[relax.Expr]:
    x, _, _, running_mean, _ = e.operands
    own_mean, own_variance = local_statistics(e.emit, x, e.call.attrs)
    own_offset = e.emit(own_mean - running_mean)
    own_square = e.emit(own_variance + own_offset * own_offset)
    elements = elements_of(e.emit, x, e.call.attrs)
    if is_constant(elements):
        offset, square, elements = _over_ranks(e, own_offset, own_square, elements)
    else:
        offset, square, elements = _over_ranks(
            e, e.emit(own_offset * elements), e.emit(own_square * elements), elements
        )
        offset, square = e.emit(offset / elements), e.emit(square / elements)
    mean = e.emit(running_mean + offset)
    variance = e.emit(op.maximum(square - offset * offset, e.number(0.0)))
    batch = batch_of(e.emit, x, e.call.attrs, mean, variance)
    return [*normalized(e.emit, e.call.attrs, batch, *e.operands), mean, variance, elements]


def _backward(e: Expansion) -> list[relax.Expr]:
    x, gamma, g, mean, variance = e.operands
    batch = batch_of(e.emit, x, e.call.attrs, mean, variance)
    return adjoints(e.emit, e.call.attrs, batch, gamma, g, partial(_over_ranks, e))


def _with_statistics(call: relax.Call) -> tvm.ir.Type:
    count = relax.TensorType([], call.args[3].ty.dtype)
    return tvm.ir.TupleType([*like(0, 3, 4, 3, 4)(call).fields, count])


#: The result, the next running mean and variance, then mean and variance of the data, which the adjoints are made of,
#: and how many elements a channel has on each rank, in the mean.
sync_batch_norm = define(
    "relax.collective.batch_norm",
    "x gamma beta running_mean running_variance",
    result=_with_statistics,
    expand=_forward,
    summary="batch_norm in training mode by the statistics of the data of all ranks, which it returns as well",
    attributes="relax.attrs.BatchNormAttrs",
)

sync_batch_norm_backward = define(
    "relax.collective.batch_norm_backward",
    "x gamma g mean variance",
    result=like(0, 1, 1),
    expand=_backward,
    summary="The adjoints of the data, scale and offset of collective.batch_norm; of the latter two those of this rank",
    attributes="relax.attrs.BatchNormAttrs",
)
