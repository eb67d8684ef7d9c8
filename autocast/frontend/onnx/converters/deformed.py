"""`DeformConv`: a convolution whose windows read between elements, each at an offset of its own.

Source: Zhu, Hu, Lin, Dai, "Deformable ConvNets v2: more deformable, better results", 2019.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from autocast.frontend.onnx.converters.node import Converter, Node, dtype, shape, static

op = relax.op


def _deform_conv(node: Node) -> relax.Expr:
    """Elements are interpolated into columns, of which a product with the weight is taken; outside are zeros."""
    x, weight, offset, bias, mask = (node.get(at) for at in range(5))
    assert x is not None and weight is not None and offset is not None
    node.refuse(f"DeformConv of {len(shape(x))} axes", len(shape(x)) != 4, "expected images, of 4 axes")
    batch, channels = shape(x)[:2]
    outputs, _, *kernel = static(weight, "weight")
    groups, shifted = (int(node.attributes.get(name, 1)) for name in ("group", "offset_group"))
    count, (rows, columns) = int(np.prod(kernel)), shape(offset)[2:]
    places = count * rows * columns
    shifts = node.emit(
        op.reshape(node.cast(offset, "float32"), [batch, shifted, count, 2, rows, columns])
    )  # of each element along both axes
    at = [_positions(node, shifts, axis, kernel, (rows, columns)) for axis in (0, 1)]
    sampled = _interpolated(node, x, at, [batch, shifted, channels // shifted, places])
    if mask is not None:
        sampled = node.emit(op.multiply(sampled, op.reshape(mask, [batch, shifted, 1, places])))
    sampled = op.reshape(sampled, [batch, groups, channels // groups * count, rows * columns])
    matrices = op.reshape(weight, [1, groups, outputs // groups, channels // groups * count])
    result = node.emit(op.reshape(op.matmul(matrices, sampled), [batch, outputs, rows, columns]))
    return result if bias is None else node.emit(op.add(result, op.reshape(bias, [1, outputs, 1, 1])))


def _positions(node: Node, shifts: relax.Expr, axis: int, kernel: list[int], results: tuple[Any, Any]) -> relax.Expr:
    """Where along an axis each window reads, (batch, groups, elements of a window, rows, columns)."""
    strides, dilations, pads = (
        node.attributes.get(name, default)
        for name, default in (("strides", [1, 1]), ("dilations", [1, 1]), ("pads", [0] * 4))
    )
    within = np.indices(kernel)[axis].reshape(1, 1, -1, 1, 1) * dilations[axis] - pads[axis]
    begins = op.multiply(op.arange(0, results[axis], 1, "float32"), relax.const(float(strides[axis]), "float32"))
    begins = op.reshape(begins, [1, 1, 1, *(results[axis] if at == axis else 1 for at in (0, 1))])
    shift = op.squeeze(op.strided_slice(shifts, axes=[3], begin=[axis], end=[axis + 1]), [3])
    return node.emit(op.add(op.add(shift, begins), relax.const(within.astype("float32"), "float32")))


def _interpolated(node: Node, x: relax.Expr, at: list[relax.Expr], to: list[Any]) -> relax.Expr:
    """Between the four elements around each position, (batch, groups, channels, positions)."""
    batch, groups, channels, places = to
    sizes = shape(x)[2:]
    flat = node.emit(op.reshape(x, [batch, groups, channels, sizes[0] * sizes[1]]))
    total: relax.Expr | None = None
    lows = [node.emit(op.floor(position)) for position in at]
    for corner in np.ndindex(2, 2):
        share: relax.Expr = relax.const(1.0, "float32")
        place: relax.Expr = relax.const(0, "int64")
        for position, low, side, size in zip(at, lows, corner, sizes, strict=True):
            here = node.emit(op.add(low, relax.const(float(side), "float32")))
            last = node.cast(op.subtract(node.size(size), relax.const(1, "int64")), "float32")
            inside = op.logical_and(op.greater_equal(here, relax.const(0.0, "float32")), op.less_equal(here, last))
            near = op.subtract(relax.const(1.0, "float32"), op.abs(op.subtract(position, here)))
            share = node.emit(op.multiply(share, op.where(inside, near, relax.const(0.0, "float32"))))
            within = op.minimum(op.maximum(here, relax.const(0.0, "float32")), last)
            place = node.emit(op.add(op.multiply(place, node.size(size)), op.astype(within, "int64")))
        index = op.broadcast_to(op.reshape(place, [batch, groups, 1, places]), to)
        part = op.multiply(
            op.gather_elements(flat, node.emit(index), axis=3),
            op.astype(op.reshape(share, [batch, groups, 1, places]), dtype(x)),
        )
        total = node.emit(part if total is None else op.add(total, part))
    assert total is not None
    return total


CONVERTERS: dict[str, Converter] = {"DeformConv": _deform_conv}
