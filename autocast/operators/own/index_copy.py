"""Writing rows by their numbers: how a cache takes what was computed last, in place where it is state."""

from __future__ import annotations

import numpy as np
from tvm import relax

from autocast.ir.views import dims, dtype_of
from autocast.operators.operator import Expansion, define, like

op = relax.op


def _expand(e: Expansion) -> relax.Expr:
    x, numbers, source = e.operands
    axis, dtype = int(e.call.attrs.axis), dtype_of(numbers)
    height = op.shape_to_tensor(relax.ShapeExpr([dims(x)[axis]]))
    negative = op.less(numbers, relax.const(0, dtype))
    rows = op.where(negative, op.add(numbers, op.astype(height, dtype)), numbers)
    order = [axis, *(other for other in range(len(dims(x))) if other != axis)]
    written = op.scatter_nd(
        op.permute_dims(x, order), op.expand_dims(rows, -1), op.permute_dims(source, order), "update"
    )
    return op.permute_dims(written, np.argsort(order).tolist())


index_copy = define(
    "relax.nn.index_copy",
    "x numbers source",
    result=like(0),
    expand=_expand,
    summary="x, with slice n of source along the attribute axis in place of its slice numbers[n]: negative numbers "
    "count from the end, beyond an end is the nearest, and of equal numbers the last counts",
)
