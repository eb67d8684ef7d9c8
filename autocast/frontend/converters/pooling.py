"""Converters of pooling: of one image, or volume, or of a batch of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.helpers import Converter, dims
from autocast.frontend.importing.importer import Importer
from autocast.frontend.nodes import results_read
from autocast.ir import same_shape

op = relax.op


def average_pool(
    x: relax.Expr,
    kernel: Sequence[int],
    stride: Sequence[int] | None,
    padding: Sequence[int] | None,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> relax.Call:
    """`avg_pool2d` of (batch, channels, height, width), or `avg_pool3d` with a depth, as torch says it."""
    pool, space = (relax.op.nn.avg_pool2d, 2) if len(dims(x)) == 4 else (relax.op.nn.avg_pool3d, 3)
    sizes = partial(_along_each, space)
    if divisor_override is not None:
        if "float" not in str(x.ty.dtype):
            raise ImportModelError(f"sums of {x.ty.dtype} by a divisor; expected floating-point numbers")
        factor = relax.const(math.prod(sizes(kernel)) / divisor_override, x.ty.dtype)
        around = list(zip(dims(x)[2:], sizes(kernel), sizes(stride or kernel), sizes(padding or [0]), strict=True))
        widths = [*sizes(padding or [0]), *(_after(*axis, bool(ceil_mode)) for axis in around)]
        windows = {"pool_size": sizes(kernel), "strides": sizes(stride or kernel), "padding": widths}
        return op.multiply(pool(x, **windows, count_include_pad=True), factor)
    return pool(
        x,
        pool_size=sizes(kernel),
        strides=sizes(stride or kernel),
        padding=sizes(padding or [0]),
        ceil_mode=bool(ceil_mode),
        count_include_pad=bool(count_include_pad),
    )


def max_pool(
    x: relax.Expr,
    kernel: Sequence[int],
    stride: Sequence[int] | None,
    padding: Sequence[int] | None,
    dilation: Sequence[int] | None,
    ceil_mode: bool,
) -> relax.Call:
    """`max_pool2d` of (batch, channels, height, width), or `max_pool3d` with a depth, as torch says it."""
    pool, space = (relax.op.nn.max_pool2d, 2) if len(dims(x)) == 4 else (relax.op.nn.max_pool3d, 3)
    sizes = partial(_along_each, space)
    return pool(
        x, sizes(kernel), sizes(stride or kernel), sizes(padding or [0]), sizes(dilation or [1]), bool(ceil_mode)
    )


def _after(extent: Any, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """The padding after an axis, of which windows that begin in the image or its padding may need more."""
    if not ceil_mode:
        return padding
    if not isinstance(extent, int):
        raise ImportModelError(f"windows that end beyond an image of {extent}; expected a size that is known now")
    count = -(-(extent + 2 * padding - kernel) // stride)  # beside the first
    count -= int(count * stride >= extent + padding)
    return max(count * stride + kernel - extent - padding, padding)


def _along_each(space: int, values: Sequence[int]) -> list[int]:
    """A number for each axis; torch takes one for all."""
    return [int(value) for value in (values if len(values) == space else list(values) * space)]


def _pooled(importer: Importer, node: fx.Node, space: int, pool: Callable[[relax.Expr], relax.Expr]) -> relax.Expr:
    """What `pool` makes of the data, which may have no batch."""
    x = importer.arg(node, 0, "self")
    if len(dims(x)) == space + 2:
        return importer.emit(pool(x))
    batch = importer.emit(relax.op.expand_dims(x, 0))
    return importer.emit(relax.op.squeeze(importer.emit(pool(batch)), [0]))


def _average_pool(importer: Importer, node: fx.Node, space: int) -> relax.Expr:
    kernel, stride, padding = (importer.arg(node, i, "") for i in (1, 2, 3))
    options = importer.arg(node, 4, "ceil_mode", False), importer.arg(node, 5, "count_include_pad", True)
    divisor = importer.arg(node, 6, "divisor_override")
    return _pooled(importer, node, space, lambda x: average_pool(x, kernel, stride, padding, *options, divisor))


def _max_pool(importer: Importer, node: fx.Node, space: int) -> list[relax.Expr]:
    """The values, and where they are if that is read."""
    kernel, stride, padding, dilation = (importer.arg(node, i, "") for i in (1, 2, 3, 4))
    ceil_mode = importer.arg(node, 5, "ceil_mode", False)
    values = _pooled(importer, node, space, lambda x: max_pool(x, kernel, stride, padding, dilation, ceil_mode))
    if 1 not in results_read(node):
        return [values]
    options = [_along_each(space, v) for v in (kernel, stride or kernel, padding or [0], dilation or [1])]
    inputs, outputs = (list(dims(x))[-space:] for x in (importer.arg(node, 0, "self"), values))
    windows = [_window(*sizes) for sizes in zip(inputs, outputs, *options, strict=True)]
    return [values, _pooled(importer, node, space, lambda x: _places_of_maxima(importer, x, windows))]


def _window(extent: Any, count: Any, kernel: int, stride: int, padding: int, dilation: int) -> np.ndarray:
    """The places that each window has along an axis, the last one again for each that is beyond the image."""
    if not isinstance(extent, int) or not isinstance(count, int):
        raise ImportModelError(f"places in an image of {extent}; expected sizes that are known now")
    places = (np.arange(count) * stride - padding)[:, None] + np.arange(kernel) * dilation
    inside = [row[(row >= 0) & (row < extent)] for row in places]
    if any(row.size == 0 for row in inside):
        raise ImportModelError("places of maxima in windows beyond the image")
    return np.stack([np.pad(row, (0, kernel - row.size), mode="edge") for row in inside])


def _places_of_maxima(importer: Importer, x: relax.Expr, windows: Sequence[np.ndarray]) -> relax.Expr:
    """For each window the first place of its maximum, counted through the image; `windows` has its places by axis."""
    shape, space = dims(x), len(windows)
    for axis, places in enumerate(windows, 2):
        x = importer.emit(op.take(x, relax.const(places.reshape(-1)), axis=axis, mode="clip"))
    counts, kernels = zip(*(places.shape for places in windows), strict=True)
    pairs = [size for places in windows for size in places.shape]
    x = importer.emit(op.reshape(x, [*shape[:2], *pairs]))
    order = [0, 1, *range(2, 2 + 2 * space, 2), *range(3, 3 + 2 * space, 2)]
    x = importer.emit(op.reshape(op.permute_dims(x, order), [*shape[:2], *counts, math.prod(kernels)]))
    found, result, step = importer.emit(op.argmax(x, -1)), relax.const(0, "int64"), 1
    for axis in reversed(range(space)):
        kernel = relax.const(kernels[axis], "int64")
        firsts = np.arange(counts[axis]) * kernels[axis]
        firsts = relax.const(firsts.reshape([-1 if at == axis else 1 for at in range(space)]), "int64")
        row = importer.emit(op.add(op.floor_mod(found, kernel), firsts))
        places = importer.emit(
            op.take(relax.const(windows[axis].reshape(-1) * step, "int64"), row, axis=0, mode="clip")
        )
        result = importer.emit(op.add(result, places))
        found, step = importer.emit(op.floor_divide(found, kernel)), step * shape[2 + axis]
    return result


def _of_places(importer: Importer, node: fx.Node, space: int) -> relax.Expr:
    """The gradient of a maximum: what came for each window, added at the place of its maximum."""
    adjoint, places = importer.arg(node, 0, "grad_output"), importer.arg(node, len(node.args) - 1, "indices")
    shape = importer.shape(node)
    lead = shape[:-space]
    flat = importer.emit(op.zeros([*lead, math.prod(shape[-space:])], importer.dtype(node)))
    places, adjoint = (importer.emit(op.reshape(v, [*lead, math.prod(dims(v)[-space:])])) for v in (places, adjoint))
    added = importer.emit(op.scatter_elements(flat, places, adjoint, axis=len(lead), reduction="add"))
    return importer.emit(op.reshape(added, shape))


def adaptive_average_pool(importer: Importer, node: fx.Node, space: int) -> relax.Expr:
    """`adaptive_avg_pool2d`, and of as many axes as `space` says."""
    x, sizes = importer.arg(node, 0, "self"), importer.shape(node)[-space:]
    rank, extents = len(dims(x)), dims(x)[-space:]
    kept = [same_shape([size], [extent]) for size, extent in zip(sizes, extents, strict=True)]
    whole = [axis - space for axis, size in enumerate(sizes) if isinstance(size, int) and size == 1]
    if all(isinstance(size, int) for size in sizes):
        pool = getattr(relax.op.nn, f"adaptive_avg_pool{space}d")
        return _pooled(importer, node, space, lambda x: pool(x, sizes))
    if all(k or i - space in whole for i, k in enumerate(kept)):
        return importer.emit(op.mean(x, whole, keepdims=True)) if whole else x
    # Axes that stay as long as they are, whatever that is, are channels of an image of fewer axes.
    pooled = [rank - space + axis for axis, is_kept in enumerate(kept) if not is_kept]
    order = [axis for axis in range(rank) if axis not in pooled] + pooled
    x = importer.emit(op.permute_dims(x, order))
    lead = dims(x)[: -len(pooled)]
    x = importer.emit(op.reshape(x, [1, math.prod(lead), *dims(x)[-len(pooled) :]]))
    outputs = [size for size, is_kept in zip(sizes, kept, strict=True) if not is_kept]
    x = importer.emit(getattr(relax.op.nn, f"adaptive_avg_pool{len(pooled)}d")(x, outputs))
    x = importer.emit(op.reshape(x, [*lead, *outputs]))
    return importer.emit(op.permute_dims(x, [order.index(axis) for axis in range(rank)]))


def _adaptive_max_pool(importer: Importer, node: fx.Node, space: int) -> list[relax.Expr]:
    """The values, and where they are if that is read: windows that differ in size repeat their last element."""
    extents, sizes = dims(importer.arg(node, 0, "self"))[-space:], _along_each(space, node.args[1])
    if set(sizes) == {1} and not all(isinstance(extent, int) for extent in extents):
        return _largest(importer, node, space)
    if 0 in (*extents, *sizes):
        raise ImportModelError(f"windows that divide {extents} in {sizes}; expected sizes above 0")
    if not all(isinstance(extent, int) for extent in extents):
        if 1 in results_read(node):
            raise ImportModelError(f"places in windows that divide {extents} in {sizes}; expected sizes known now")
        return [_pooled(importer, node, space, lambda x: _largest_of_windows(importer, x, sizes))]
    windows = []
    for extent, size in zip(extents, sizes, strict=True):
        begin = np.arange(size) * extent // size
        end = -(-(np.arange(size) + 1) * extent // size)
        windows.append(np.minimum(begin[:, None] + np.arange((end - begin).max()), end[:, None] - 1))

    def pool(x: relax.Expr) -> relax.Expr:
        for axis, places in enumerate(windows, 2):
            if places.size != extents[axis - 2]:
                x = importer.emit(relax.op.take(x, relax.const(places.reshape(-1)), axis=axis, mode="clip"))
        return max_pool(x, [places.shape[1] for places in windows], None, None, None, False)

    values = _pooled(importer, node, space, pool)
    if 1 not in results_read(node):
        return [values]
    return [values, _pooled(importer, node, space, lambda x: _places_of_maxima(importer, x, windows))]


def _largest_of_windows(importer: Importer, x: relax.Expr, outputs: Sequence[int]) -> relax.Expr:
    """Of windows that divide axes of any size, from the last one on: shorter ones repeat their last element.

    It is read at its place, so that the first of equals, row by row, has the gradient.
    """
    for axis, count in reversed([*enumerate(outputs, 2)]):
        shape = dims(x)
        extent = importer.emit(op.shape_to_tensor(relax.ShapeExpr([shape[axis]])))
        number, one, parts = (relax.const(n, "int64") for n in (np.arange(count)[:, None], 1, count))
        begin = op.floor_divide(op.multiply(number, extent), parts)
        end = op.negative(op.floor_divide(op.negative(op.multiply(op.add(number, one), extent)), parts))
        steps = op.arange(0, shape[axis] // count + 2, 1, "int64")
        places = importer.emit(
            op.minimum(op.add(begin, steps), op.subtract(end, one))
        )  # (count, of the longest window)
        rows = importer.emit(op.take(x, importer.emit(op.reshape(places, [-1])), axis=axis, mode="clip"))
        rows = importer.emit(op.reshape(rows, [*shape[:axis], *dims(places), *shape[axis + 1 :]]))
        place = importer.emit(op.argmax(rows, axis + 1, keepdims=True))
        x = importer.emit(op.squeeze(importer.emit(op.gather_elements(rows, place, axis + 1)), [axis + 1]))
    return x


def _largest(importer: Importer, node: fx.Node, space: int) -> list[relax.Expr]:
    """The largest of an image of any size, and its place: read there, so that the first of equals has the gradient."""
    x = importer.arg(node, 0, "self")
    lead = dims(x)[:-space]
    flat = importer.emit(op.reshape(x, [*lead, math.prod(dims(x)[-space:])]))
    place = importer.emit(op.argmax(flat, -1, keepdims=True))
    values = importer.emit(op.gather_elements(flat, place, -1))
    return [importer.emit(op.reshape(part, [*lead, *[1] * space])) for part in (values, place)]


#: Converters by the name of the overload.
POOLING: dict[str, Converter] = {
    "adaptive_avg_pool1d.default": partial(adaptive_average_pool, space=1),
    "adaptive_avg_pool2d.default": partial(adaptive_average_pool, space=2),
    "adaptive_avg_pool3d.default": partial(adaptive_average_pool, space=3),
    "adaptive_max_pool2d.default": partial(_adaptive_max_pool, space=2),
    "adaptive_max_pool2d_backward.default": partial(_of_places, space=2),
    "adaptive_max_pool3d.default": partial(_adaptive_max_pool, space=3),
    "adaptive_max_pool3d_backward.default": partial(_of_places, space=3),
    "avg_pool2d.default": partial(_average_pool, space=2),
    "avg_pool3d.default": partial(_average_pool, space=3),
    "fractional_max_pool2d_backward.default": partial(_of_places, space=2),
    "fractional_max_pool3d_backward.default": partial(_of_places, space=3),
    "max_pool2d_with_indices.default": partial(_max_pool, space=2),
    "max_pool2d_with_indices_backward.default": partial(_of_places, space=2),
    "max_pool3d_with_indices.default": partial(_max_pool, space=3),
    "max_pool3d_with_indices_backward.default": partial(_of_places, space=3),
}
