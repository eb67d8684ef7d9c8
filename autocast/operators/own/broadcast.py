"""The backward operator of broadcasting: a long sum, in float32 whatever the adjoint is stored in."""

from __future__ import annotations

import tvm
from tvm import relax

from autocast.ir.views import shape_of
from autocast.operators.operator import Expansion, define, wide_dtype

op = relax.op


def _axes(call: relax.Call) -> list[int]:
    rank = int(call.args[0].ty.ndim)
    return [int(axis) % rank for axis in call.attrs.axis]


def _result(call: relax.Call) -> tvm.ir.Type:
    g = call.args[0]
    shape = [size for axis, size in enumerate(shape_of(g) or ()) if axis not in _axes(call)]
    return relax.TensorType(shape, wide_dtype(g))


def _sum(e: Expansion) -> relax.Expr:
    return op.sum(e.operands[0], _axes(e.call))


broadcast_backward = define(
    "relax.grad.broadcast_backward",
    "g",
    result=_result,
    expand=_sum,
    summary="The sum of g over the attribute axis, along which a tensor was repeated; float32 at least",
)
