"""Images that float32 cannot hold are resized by numbers of pixels and matrices: TVM computes in float32."""

from __future__ import annotations

import numpy as np
from tvm import relax

from autocast.ir import dtype_of, static_shape
from autocast.ir.rewriting import BindingRewriter
from autocast.operators.resizing import resizing_matrix

_WIDE = ("float64", "int32", "uint32", "int64", "uint64")


def resize(rewriter: BindingRewriter, call: relax.Call, data: relax.Expr, *_: relax.Expr) -> relax.Expr | None:
    """resize2d and resize3d of known sizes: of float64, and of integers where each pixel is one of the image."""
    emit, op, layout = rewriter.emit, relax.op, str(call.attrs.layout)
    shape, out, nearest = static_shape(data), static_shape(call), str(call.attrs.method) == "nearest_neighbor"
    wide = dtype_of(data) in _WIDE if nearest else dtype_of(data) == "float64"
    if not wide or shape is None or out is None or 0 in shape or len(layout) != len(shape):
        return None
    axes = [axis for axis, letter in enumerate(layout) if letter in "DHW"]
    matrices = [resizing_matrix(call.attrs, shape[axis], out[axis]) for axis in axes]
    known = [matrix for matrix in matrices if matrix is not None]
    if len(known) < len(axes):
        return None
    for axis, matrix in zip(axes, known, strict=True):
        if nearest:
            data = emit(op.take(data, relax.const(np.argmax(matrix, axis=1), "int64"), axis))
            continue
        order = [i for i in range(len(shape)) if i != axis] + [axis]
        product = emit(op.matmul(emit(op.permute_dims(data, order)), relax.const(matrix.T, "float64")))
        data = emit(op.permute_dims(product, [order.index(i) for i in range(len(shape))]))
    return emit(op.astype(data, dtype_of(call)))
