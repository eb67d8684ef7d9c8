"""Batch normalization by the statistics of all processes that train together, and its backward operator.

The means over ranks of (mean - running mean) and of variance + (mean - running mean)^2 are sent in one message, and
make mean and variance of all ranks' data, where each has as many examples. Squares of what is far from zero would
cancel; the running mean, which is the same on all ranks, is near. Backward, the means over ranks of both sums of the
adjoint take another message; the sums of this rank are its adjoints of scale and offset, which are averaged later.

In one process it is what batch_norm is.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax

from autocast.ir.views import static_shape
from autocast.operators.operator import Expansion, define, like
from autocast.operators.own.batch_norm import adjoints, batch_of, local_statistics, normalized
from autocast.operators.own.collectives import expand_done, expand_start

op = relax.op


def _over_ranks(e: Expansion, vectors: Sequence[relax.Expr]) -> list[relax.Var]:
    """The means over ranks of vectors over channels, sent in one message."""
    buffer = e.emit(expand_start(vectors))
    shapes = [list(static_shape(vector) or ()) for vector in vectors]
    return [e.emit(mean) for mean in expand_done(e.emit, buffer, shapes, "float32")]


def _forward(e: Expansion) -> list[relax.Expr]:
    x, _, _, running_mean, _ = e.operands
    own_mean, own_variance = local_statistics(e.emit, x, e.call.attrs)
    offset = e.emit(own_mean - running_mean)
    offset, square = _over_ranks(e, [offset, e.emit(own_variance + offset * offset)])
    mean = e.emit(running_mean + offset)
    variance = e.emit(op.maximum(square - offset * offset, e.number(0.0)))
    batch = batch_of(e.emit, x, e.call.attrs, mean, variance)
    return [*normalized(e.emit, e.call.attrs, batch, *e.operands), mean, variance]


def _backward(e: Expansion) -> list[relax.Expr]:
    x, gamma, g, mean, variance = e.operands
    batch = batch_of(e.emit, x, e.call.attrs, mean, variance)
    return adjoints(e.emit, e.call.attrs, batch, gamma, g, lambda sums: _over_ranks(e, sums))


def _with_statistics(call: relax.Call) -> tvm.ir.Type:
    return like(0, 3, 4, 3, 4)(call)


#: The result, the next running mean and variance, then mean and variance of the data, which the adjoints are made of.
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
