"""Converters of indexing on any axes, of writing by slices, and of counting."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.helpers import Converter, axis_of, cast, dims
from autocast.frontend.converters.masks import without_masks
from autocast.frontend.converters.movement import same_size, slice_bounds
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of
from autocast.operators import own

op = relax.op


def from_start(importer: Importer, index: relax.Expr, size: Any) -> relax.Expr:
    """The index with negative entries counted from the start: what reads it counts those that are left again."""
    if not isinstance(size, int):
        return index  # torch.export knows no negative index into a symbolic dimension
    dtype = dtype_of(index)
    zero = relax.const(0, dtype)
    wrapped = importer.emit(op.maximum(op.add(index, relax.const(size, dtype)), zero))
    negative = importer.emit(op.less(index, zero))
    return importer.emit(op.where(negative, wrapped, index))


def given_indices(importer: Importer, node: fx.Node) -> list[tuple[int, relax.Expr]]:
    """The indices that are tensors, and their axes."""
    position = 2 if node.target is torch.ops.aten._unsafe_masked_index.default else 1
    indices = importer.arg(node, position, "indices")
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if any(dtype_of(index) in ("bool", "uint8") for _, index in given):
        raise ImportModelError("indexing with a boolean mask, whose result has a shape known only at run time")
    return given


def _index(importer: Importer, node: fx.Node) -> relax.Expr:
    """`x[i, :, j]`; negative indices count from the end, so one index alone wraps around."""
    x, indices = without_masks(importer, node, *(importer.arg(node, i, "") for i in (0, 1)))
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) == 1:
        return importer.emit(op.take(x, given[0][1], axis=given[0][0], mode="wrap"))
    return _gather(importer, x, [(axis, from_start(importer, index, dims(x)[axis])) for axis, index in given])


def _gather(importer: Importer, x: relax.Expr, given: list[tuple[int, relax.Expr]]) -> relax.Expr:
    """The elements at indices that are in bounds; their axes come first, or stay where they were side by side."""
    axes, rows = [axis for axis, _ in given], [index for _, index in given]
    rest = [axis for axis in range(len(dims(x))) if axis not in axes]
    if axes != list(range(len(axes))):
        x = importer.emit(op.permute_dims(x, [*axes, *rest]))
    result = importer.emit(op.index_tensor(x, rows))
    first, together = axes[0], axes == list(range(axes[0], axes[0] + len(axes)))
    if not together or first == 0:
        return result
    count = len(dims(result)) - len(rest)  # the axes of the indices
    order = [*range(count, count + first), *range(count), *range(count + first, len(dims(result)))]
    return importer.emit(op.permute_dims(result, order))


def _elements(importer: Importer, node: fx.Node) -> relax.Expr:
    """`gather`: along an axis, at an index that may be smaller along the others; a scalar has one axis to torch."""
    x, index = importer.arg(node, 0, "self"), importer.arg(node, 2, "index")
    x, index = (value if dims(value) else importer.emit(op.reshape(value, [1])) for value in (x, index))
    axis, extents = axis_of(x, node.args[1]), [*dims(index)]
    extents[axis] = dims(x)[axis]
    smaller = [at for at, extent in enumerate(extents) if not same_size(extent, dims(x)[at])]
    if smaller:
        ends = [extents[at] for at in smaller]
        x = importer.emit(op.strided_slice(x, smaller, [0] * len(smaller), ends, assume_inbound=True))
    result = importer.emit(op.gather_elements(x, index, axis))
    return result if importer.shape(node) else importer.emit(op.reshape(result, []))


def _masked_index(importer: Importer, node: fx.Node) -> relax.Expr:
    """The elements at indices where a mask is true, which may be out of bounds elsewhere, and a number there."""
    x, mask, fill = (importer.arg(node, i, "") for i in (0, 1, 3))
    given = []
    for axis, index in given_indices(importer, node):
        dtype = str(dtype_of(index))
        last = importer.number(dims(x)[axis] - 1, dtype)
        clipped = importer.emit(op.maximum(op.minimum(index, last), relax.const(0, dtype)))
        given.append((axis, clipped))
    values = _gather(importer, x, given)
    return importer.emit(op.where(mask, values, relax.const(fill, importer.dtype(node))))


def _slice_scatter(importer: Importer, node: fx.Node) -> relax.Expr:
    x, source = importer.arg(node, 0, "self"), importer.arg(node, 1, "src")
    axis = axis_of(x, importer.arg(node, 2, "dim", 0))
    return with_slice(importer, node, x, cast(importer, source, importer.dtype(node)), axis)


def with_slice(importer: Importer, node: fx.Node, x: relax.Expr, source: relax.Expr, axis: int) -> relax.Expr:
    """`x[start:end:step] = source` of a `slice_scatter`: what is before, the source, and what comes after."""
    size, step = dims(x)[axis], importer.arg(node, 5, "step", 1)
    start, end = slice_bounds(importer, node, size, axis, 3)
    if step != 1:
        if not all(isinstance(value, int) for value in (start, end, size)):
            raise ImportModelError("writing with steps into a dimension that is known only at run time")
        return importer.emit(own.index_copy(x, relax.const(np.arange(start, end, step)), source, axis=axis))
    parts = [source]
    if not (isinstance(start, int) and start == 0):
        parts.insert(0, importer.emit(op.strided_slice(x, [axis], [0], [start], assume_inbound=True)))
    if str(end) != str(size):
        parts.append(importer.emit(op.strided_slice(x, [axis], [end], [size], assume_inbound=True)))
    return source if len(parts) == 1 else importer.emit(op.concat(parts, axis=axis))


def _arange(importer: Importer, node: fx.Node) -> relax.Expr:
    """`start + i * step` for as many i as torch counts: where a step is negative TVM counts others."""
    bounds = [importer.arg(node, at, "") for at in range(len(node.args))]
    start, end, step = [[0, *bounds, 1], [*bounds, 1], bounds][len(bounds) - 1]
    (count,), dtype = importer.type_of(node.meta["val"])
    if isinstance(step, int) and step > 0 and "float" not in dtype:
        return importer.emit(op.arange(start, end, step, dtype))
    wide = "float64" if "float" in dtype else "int64"  # as torch counts
    offset, factor = (
        relax.const(value, wide) if isinstance(value, int | float) else importer.number(value, wide)
        for value in (start, step)
    )
    places = importer.emit(op.astype(op.arange(0, count, 1, "int64"), wide))
    return cast(importer, importer.emit(op.add(op.multiply(places, factor), offset)), dtype)


def _eye(importer: Importer, node: fx.Node) -> relax.Expr:
    """1 where row and column have one number. torch's own parts of it count in uint16, for which it has no kernels."""
    rows, columns = (importer.emit(op.arange(0, size, 1, "int64")) for size in importer.shape(node))
    ones = importer.emit(op.equal(importer.emit(op.expand_dims(rows, 1)), columns))
    return cast(importer, ones, importer.dtype(node))


def _topk(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    """The largest elements and their places, in order, whether that is asked for or not."""
    x, k = importer.arg(node, 0, "self"), importer.arg(node, 1, "k")
    if not dims(x):
        return [x, relax.const(0, "int64")]
    axis, largest = axis_of(x, importer.arg(node, 2, "dim", -1)), bool(importer.arg(node, 3, "largest", True))
    if isinstance(k, int):
        both = importer.emit(op.topk(x, k, axis, "both", largest, "int64"))
        return [importer.emit(relax.TupleGetItem(both, i)) for i in range(2)]
    ordered = [importer.emit(op.sort(x, axis, largest)), importer.emit(op.argsort(x, axis, largest, "int64"))]
    return [importer.emit(op.strided_slice(values, [axis], [0], [k], assume_inbound=True)) for values in ordered]


def _histc(importer: Importer, node: fx.Node) -> relax.Expr:
    """How many elements are in each of some bins of the same width; the last one has both of its ends.

    Bins between equal bounds are those from the smallest element to the largest.
    """
    x, dtype = importer.arg(node, 0, "self"), importer.dtype(node)
    bins = int(importer.arg(node, 1, "bins", 100))
    flat = importer.emit(op.reshape(x, [-1]))
    low, high = (relax.const(float(importer.arg(node, i, name, 0)), dtype) for i, name in ((2, "min"), (3, "max")))
    if importer.arg(node, 2, "min", 0) == importer.arg(node, 3, "max", 0):
        smallest, largest, one = importer.emit(op.min(flat)), importer.emit(op.max(flat)), relax.const(1, dtype)
        alike = importer.emit(op.equal(smallest, largest))
        low = importer.emit(op.where(alike, smallest - one, smallest))
        high = importer.emit(op.where(alike, largest + one, largest))
    scaled = op.divide(op.multiply(flat - low, relax.const(bins, dtype)), high - low)
    places = importer.emit(op.minimum(op.floor(scaled), relax.const(bins - 1, dtype)))
    inside = op.logical_and(op.greater_equal(flat, low), op.less_equal(flat, high))
    places = importer.emit(op.where(inside, places, relax.const(-1, dtype)))
    columns = relax.const(np.arange(bins)[:, None], dtype)
    return importer.emit(op.sum(op.astype(op.equal(op.expand_dims(places, 0), columns), dtype), 1))


def _bucketize(importer: Importer, node: fx.Node) -> relax.Expr:
    """Between which of the sorted boundaries each number is; NaN is after all of them."""
    x, boundaries = importer.arg(node, 0, "self"), importer.arg(node, 1, "boundaries")
    if node.target.overloadpacket is torch.ops.aten.searchsorted:
        x, boundaries = boundaries, x
    if not isinstance(x, relax.Expr):
        x = relax.const(x, "float32" if isinstance(x, float) else "int64")
    if (order := node.kwargs.get("sorter")) is not None:
        boundaries = importer.emit(op.gather_elements(boundaries, importer.env[order], -1))
    right = bool(importer.arg(node, 3, "right", False)) or node.kwargs.get("side") == "right"
    dtypes = [getattr(torch, str(dtype_of(value))) for value in (x, boundaries)]
    common = str(torch.promote_types(*dtypes)).removeprefix("torch.")
    x, boundaries = cast(importer, x, common), cast(importer, boundaries, common)
    if len(dims(boundaries)) == 1:
        place = importer.emit(op.bucketize(x, boundaries, importer.dtype(node) == "int32", right))
    else:  # a row of boundaries for each row of numbers
        apart = op.expand_dims(boundaries, -2), op.expand_dims(x, -1)
        before = importer.emit((op.less_equal if right else op.less)(*apart))
        place = importer.emit(op.sum(op.astype(before, importer.dtype(node)), -1))
    if "float" not in common:
        return place
    last = importer.number(dims(boundaries)[-1], importer.dtype(node))
    return importer.emit(op.where(importer.emit(op.isnan(x)), last, place))


def _nonzero(importer: Importer, node: fx.Node) -> relax.Expr:
    """`nonzero_static`: the places of the first elements that are not 0, as rows; then rows of a number."""
    x, size = importer.arg(node, 0, "self"), int(node.kwargs["size"])
    shape, fill = dims(x), relax.const(int(node.kwargs.get("fill_value", -1)), "int64")
    if not all(isinstance(extent, int) for extent in shape):
        raise ImportModelError("places in a tensor whose shape is known only at run time")
    flat = importer.emit(op.astype(op.reshape(cast(importer, x, "bool"), [-1]), "int64"))
    number = importer.emit(op.subtract(op.cumsum(flat, 0), relax.const(1, "int64")))
    wanted = op.logical_and(op.astype(flat, "bool"), op.less(number, relax.const(size, "int64")))
    row = importer.emit(op.where(wanted, number, relax.const(size, "int64")))  # one row for all others
    count = int(np.prod(shape))
    places = op.scatter_elements(op.full([size + 1], fill), row, relax.const(np.arange(count), "int64"), 0)
    places = importer.emit(op.strided_slice(importer.emit(places), [0], [0], [size], assume_inbound=True))
    exists = importer.emit(op.less(relax.const(np.arange(size), "int64"), op.sum(flat)))
    columns = []
    for axis, extent in enumerate(shape):
        step = relax.const(int(np.prod(shape[axis + 1 :])), "int64")
        column = op.floor_mod(op.floor_divide(places, step), relax.const(extent, "int64"))
        columns.append(importer.emit(op.where(exists, column, fill)))
    return importer.emit(op.stack(columns, 1))


#: Converters by the name of the overload.
INDEXING: dict[str, Converter] = {
    "_unsafe_index.Tensor": _index,
    "_unsafe_masked_index.default": _masked_index,
    "arange.default": _arange,
    "arange.start": _arange,
    "arange.start_step": _arange,
    "eye.default": _eye,
    "eye.m": _eye,
    "bucketize.Scalar": _bucketize,
    "bucketize.Tensor": _bucketize,
    "gather.default": _elements,
    "histc.default": _histc,
    "index.Tensor": _index,
    "nonzero_static.default": _nonzero,
    "searchsorted.Scalar": _bucketize,
    "searchsorted.Tensor": _bucketize,
    "slice_scatter.default": _slice_scatter,
    "topk.default": _topk,
}
