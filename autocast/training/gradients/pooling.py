"""Pooling: a maximum passes its adjoint to the element that won, an average to all of its window."""

from __future__ import annotations

import math

import numpy as np
from tvm import ir, relax
from tvm.relax import op

from autocast.errors import GradientError
from autocast.training.gradients.registry import Adjoint, Backward, gradient
from autocast.training.gradients.shapes import extent_of, known_shape, reshaped, shape_expr
from autocast.training.gradients.unknown_sizes import averages, cut_windows
from autocast.training.gradients.vision import along_axes


def _pooling_2d(b: Backward) -> list[Adjoint]:
    if _cut(b.call):
        return [_of_cut_windows(b)]
    return [_backward(b.call.op.name, b.adjoint, b.call.args[0], b.call.attrs)]


def _pooling_1d(b: Backward) -> list[Adjoint]:
    """As pooling of images that are one pixel high."""
    data, attributes = b.call.args[0], b.call.attrs
    if _cut(b.call):
        return [_of_cut_windows(b)]
    if str(attributes.layout) != "NCW":
        raise GradientError(f"layout={attributes.layout!r}; expected NCW")
    image, adjoint = (b.emit(op.expand_dims(tensor, 2)) for tensor in (data, b.adjoint))
    name = b.call.op.name.replace("1d", "2d")
    pooled = getattr(op.nn, name.rpartition(".")[2])(
        image,
        [1, int(attributes.pool_size[0])],
        [1, int(attributes.strides[0])],
        [0, int(attributes.padding[0]), 0, int(attributes.padding[1])],
        [1, int(attributes.dilation[0])],
        bool(attributes.ceil_mode),
        bool(attributes.count_include_pad),
    )
    return [reshaped(b.emit(_backward(name, adjoint, image, pooled.attrs)), data)]


def _pooling_3d(b: Backward) -> list[Adjoint]:
    """As pooling of the planes of each volume, and then of columns along the depth."""
    data, attributes = b.call.args[0], b.call.attrs
    if _cut(b.call):
        return [_of_cut_windows(b)]
    if str(attributes.layout) != "NCDHW":
        raise GradientError(f"layout={attributes.layout!r}; expected NCDHW")
    batch, channels, depth, *image = known_shape(data)
    out_depth, *out_image = known_shape(b.call)[2:]
    window = attributes.pool_size, attributes.strides, attributes.dilation
    size, strides, dilation = (list(map(int, values)) for values in window)
    front, top, left, back, bottom, right = map(int, attributes.padding)
    options = bool(attributes.ceil_mode), bool(attributes.count_include_pad)
    name = b.call.op.name.rpartition(".")[2].replace("3d", "2d")
    pool = getattr(op.nn, name)

    planes = b.emit(op.reshape(data, (batch, channels * depth, *image)))
    of_planes = pool(planes, size[1:], strides[1:], [top, left, bottom, right], dilation[1:], *options)
    columns = b.emit(op.reshape(b.emit(of_planes), (batch, channels, depth, math.prod(out_image))))
    of_columns = pool(columns, [size[0], 1], [strides[0], 1], [front, 0, back, 0], [dilation[0], 1], *options)
    adjoint = b.emit(op.reshape(b.adjoint, (batch, channels, out_depth, math.prod(out_image))))
    adjoint = b.emit(_backward(name, adjoint, columns, of_columns.attrs))
    adjoint = b.emit(op.reshape(adjoint, (batch, channels * depth, *out_image)))
    return [reshaped(b.emit(_backward(name, adjoint, planes, of_planes.attrs)), data)]


def _backward(name: str, adjoint: relax.Expr, data: relax.Expr, attributes: ir.Attrs) -> relax.Call:
    backward = ir.Op.get(f"relax.grad.{name.rpartition('.')[2]}_backward")
    return relax.Call(backward, [adjoint, data], attributes)


def _cut(call: relax.Call) -> bool:
    """Whether means are taken of windows that padding counts in, and what is behind the padding does not.

    TVM's gradient divides by whole windows.
    """
    return "avg" in call.op.name and bool(call.attrs.ceil_mode) and bool(call.attrs.count_include_pad)


def _of_cut_windows(b: Backward) -> relax.Expr:
    """Along each axis a product with the matrix of averages."""
    data, attributes = b.call.args[0], b.call.attrs
    axes = [place for place, axis in enumerate(str(attributes.layout)) if axis not in "NC"]
    shape, out = known_shape(data), known_shape(b.call)
    matrices: dict[int, np.ndarray | relax.Expr] = {}
    for i, axis in enumerate(axes):
        window, stride, step = (int(a[i]) for a in (attributes.pool_size, attributes.strides, attributes.dilation))
        before, after = int(attributes.padding[i]), int(attributes.padding[i + len(axes)])
        if not isinstance(shape[axis], int):
            matrices[axis] = cut_windows(b, axis, window, stride, step, (before, after))
            continue
        matrix = np.zeros((out[axis], shape[axis] + before + after))
        for row, average in enumerate(matrix):
            average[row * stride :: step][:window] = 1 / len(average[row * stride :: step][:window])
        matrices[axis] = matrix[:, before : before + shape[axis]]
    return along_axes(b, b.adjoint, matrices)


def _adaptive(b: Backward) -> list[Adjoint]:
    """Along each axis a product with the matrix of averages; of everything, or of equal windows, a repetition."""
    data, layout = b.call.args[0], str(b.call.attrs.layout)
    axes = [place for place, axis in enumerate(layout) if axis not in "NC"]
    shape, out = known_shape(data), known_shape(b.call)
    if all(out[axis] == 1 for axis in axes):
        return [op.broadcast_to(b.adjoint / extent_of(data, axes), shape_expr(data))]
    matrices = {
        axis: _averages(shape[axis], out[axis]) if isinstance(shape[axis], int) else averages(b, axis) for axis in axes
    }
    return [along_axes(b, b.adjoint, matrices)]


def _averages(extent: int, outputs: int) -> np.ndarray:
    """The (outputs, extent) matrix of adaptive pooling: windows divide the data as evenly as they can."""
    matrix = np.zeros((outputs, extent))
    for i in range(outputs):
        begin, end = i * extent // outputs, -(-(i + 1) * extent // outputs)
        matrix[i, begin:end] = 1 / (end - begin)
    return matrix


_LARGEST = "the adjoint of each window goes to its largest element, the first of equal ones"
_AVERAGE = "the adjoint of each window, divided by its size, goes to all of its elements"

RULES = (
    gradient("relax.nn.max_pool1d", _pooling_1d, why=_LARGEST),
    gradient("relax.nn.max_pool2d", _pooling_2d, why=_LARGEST),
    gradient("relax.nn.avg_pool1d", _pooling_1d, why=_AVERAGE),
    gradient("relax.nn.avg_pool2d", _pooling_2d, why=_AVERAGE),
    gradient("relax.nn.max_pool3d", _pooling_3d, why=_LARGEST),
    gradient("relax.nn.avg_pool3d", _pooling_3d, why=_AVERAGE),
    gradient("relax.nn.adaptive_avg_pool1d", _adaptive, why=_AVERAGE),
    gradient("relax.nn.adaptive_avg_pool2d", _adaptive, why=_AVERAGE),
    gradient("relax.nn.adaptive_avg_pool3d", _adaptive, why=_AVERAGE),
)
