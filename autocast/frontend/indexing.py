"""Converters of indexing on any axes, of writing by slices and by several indices, and of counting."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.helpers import Converter, axis_of, cast, dims
from autocast.frontend.importer import Importer
from autocast.frontend.movement import bound
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


def _given(importer: Importer, node: fx.Node) -> list[tuple[int, relax.Expr]]:
    """The indices that are tensors, and their axes."""
    position = 2 if node.target is torch.ops.aten._unsafe_masked_index.default else 1
    indices = importer.arg(node, position, "indices")
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if any(dtype_of(index) in ("bool", "uint8") for _, index in given):
        raise ImportModelError("indexing with a boolean mask, whose result has a shape known only at run time")
    return given


def _index(importer: Importer, node: fx.Node) -> relax.Expr:
    """`x[i, :, j]`; negative indices count from the end, so one index alone wraps around."""
    x, given = importer.arg(node, 0, "self"), _given(importer, node)
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


def _masked_index(importer: Importer, node: fx.Node) -> relax.Expr:
    """The elements at indices where a mask is true, which may be out of bounds elsewhere, and a number there."""
    x, mask, fill = (importer.arg(node, i, "") for i in (0, 1, 3))
    given = []
    for axis, index in _given(importer, node):
        dtype = str(dtype_of(index))
        last = importer.number(dims(x)[axis] - 1, dtype)
        clipped = importer.emit(op.maximum(op.minimum(index, last), relax.const(0, dtype)))
        given.append((axis, clipped))
    values = _gather(importer, x, given)
    return importer.emit(op.where(mask, values, relax.const(fill, importer.dtype(node))))


def _index_put(importer: Importer, node: fx.Node) -> relax.Expr:
    """`x[i, :, j] = values`, or added to it; a mask with one value is a choice."""
    x, indices, values = (importer.arg(node, i, "") for i in range(3))
    accumulate = bool(importer.arg(node, 3, "accumulate", False))
    values = cast(importer, values, importer.dtype(node))
    masks = [index for index in indices if index is not None and dtype_of(index) == "bool"]
    if masks:
        return _put_where(importer, x, indices, values, accumulate)
    given = _given(importer, node)
    if len(given) == 1 and not accumulate and len(dims(given[0][1])) == 1:
        ((axis, rows),) = given
        shape = [*importer.shape(node)]
        shape[axis] = dims(rows)[0]
        values = importer.emit(op.broadcast_to(values, shape))
        return importer.emit(own.index_copy(x, rows, values, axis=axis))
    given = [(axis, from_start(importer, index, dims(x)[axis])) for axis, index in given]
    axes = [axis for axis, _ in given]
    rest = [axis for axis in range(len(dims(x))) if axis not in axes]
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise ImportModelError(f"writing with indices on the axes {axes}; expected axes side by side")
    order = [*axes, *rest]
    moved = order != sorted(order)
    before, shape = axes[0], importer.shape(node)
    index_shape = list(torch.broadcast_shapes(*(node.args[1][axis].meta["val"].shape for axis in axes)))
    index_shape = [importer.dim(size) for size in index_shape]
    count = len(index_shape)
    whole = [*shape[:before], *index_shape, *shape[before + len(axes) :]]
    values = importer.emit(op.broadcast_to(values, whole))
    if moved:
        x = importer.emit(op.permute_dims(x, order))
        places = [*range(before, before + count), *range(before), *range(before + count, len(whole))]
        values = importer.emit(op.permute_dims(values, places))
    columns = [importer.emit(op.broadcast_to(index, index_shape)) for _, index in given]
    columns = [importer.emit(op.expand_dims(cast(importer, column, "int64"), -1)) for column in columns]
    places = columns[0] if len(columns) == 1 else importer.emit(op.concat(columns, axis=-1))
    result = importer.emit(op.scatter_nd(x, places, values, "add" if accumulate else "update"))
    return importer.emit(op.permute_dims(result, [int(i) for i in np.argsort(order)])) if moved else result


def _put_where(
    importer: Importer, x: relax.Expr, indices: list[Any], values: relax.Expr, accumulate: bool
) -> relax.Expr:
    """`x[mask] = value`, where the mask is of the first axes, and the value the same everywhere."""
    mask, rank = indices[0], len(dims(x))
    if len(indices) != 1 or any(size != 1 for size in dims(values)):
        raise ImportModelError("writing different values where a mask is true")
    mask = importer.emit(op.reshape(mask, [*dims(mask), *[1] * (rank - len(dims(mask)))]))
    value = importer.emit(op.reshape(values, []))
    value = importer.emit(op.add(x, value)) if accumulate else value
    return importer.emit(op.where(mask, value, x))


def _slice_scatter(importer: Importer, node: fx.Node) -> relax.Expr:
    """`x[start:end] = source`: what is before, the source, and what comes after."""
    x, source = importer.arg(node, 0, "self"), importer.arg(node, 1, "src")
    start, end = importer.arg(node, 3, "start"), importer.arg(node, 4, "end")
    axis, step = axis_of(x, importer.arg(node, 2, "dim", 0)), importer.arg(node, 5, "step", 1)
    size = dims(x)[axis]
    start, end = bound(start, size, 0), bound(end, size, size)
    source = cast(importer, source, importer.dtype(node))
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


def _topk(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    """The largest elements and their places, in order, whether that is asked for or not."""
    x, k = importer.arg(node, 0, "self"), importer.arg(node, 1, "k")
    if not dims(x) or not isinstance(k, int):
        raise ImportModelError("of a scalar, or a number of elements that is known only at run time")
    axis, largest = axis_of(x, importer.arg(node, 2, "dim", -1)), bool(importer.arg(node, 3, "largest", True))
    both = importer.emit(op.topk(x, k, axis, "both", largest, "int64"))
    return [importer.emit(relax.TupleGetItem(both, i)) for i in range(2)]


def _histc(importer: Importer, node: fx.Node) -> relax.Expr:
    """How many elements are in each of some bins of the same width; the last one has both of its ends."""
    x, dtype = importer.arg(node, 0, "self"), importer.dtype(node)
    bins = int(importer.arg(node, 1, "bins", 100))
    low, high = (float(importer.arg(node, i, name, 0)) for i, name in ((2, "min"), (3, "max")))
    if low >= high:
        raise ImportModelError("bins from the smallest element to the largest")
    flat = importer.emit(op.reshape(x, [-1]))
    scaled = op.divide(
        op.multiply(flat - relax.const(low, dtype), relax.const(bins, dtype)), relax.const(high - low, dtype)
    )
    places = importer.emit(op.minimum(op.floor(scaled), relax.const(bins - 1, dtype)))
    inside = op.logical_and(
        op.greater_equal(flat, relax.const(low, dtype)), op.less_equal(flat, relax.const(high, dtype))
    )
    places = importer.emit(op.where(inside, places, relax.const(-1, dtype)))
    columns = relax.const(np.arange(bins)[:, None], dtype)
    return importer.emit(op.sum(op.astype(op.equal(op.expand_dims(places, 0), columns), dtype), 1))


def _bucketize(importer: Importer, node: fx.Node) -> relax.Expr:
    """Between which of the sorted boundaries each number is; NaN is after all of them."""
    x, boundaries = importer.arg(node, 0, "self"), importer.arg(node, 1, "boundaries")
    if node.target is torch.ops.aten.searchsorted.Tensor:
        x, boundaries = boundaries, x
    if len(dims(boundaries)) != 1 or node.kwargs.get("sorter") is not None:
        raise ImportModelError("boundaries of several dimensions, or that are not sorted")
    right = bool(importer.arg(node, 3, "right", False)) or node.kwargs.get("side") == "right"
    dtypes = [getattr(torch, str(dtype_of(value))) for value in (x, boundaries)]
    common = str(torch.promote_types(*dtypes)).removeprefix("torch.")
    x, boundaries = cast(importer, x, common), cast(importer, boundaries, common)
    place = importer.emit(op.bucketize(x, boundaries, importer.dtype(node) == "int32", right))
    if "float" not in common:
        return place
    last = importer.number(dims(boundaries)[0], importer.dtype(node))
    return importer.emit(op.where(importer.emit(op.isnan(x)), last, place))


#: Converters by the name of the overload.
INDEXING: dict[str, Converter] = {
    "_unsafe_index.Tensor": _index,
    "_unsafe_masked_index.default": _masked_index,
    "bucketize.Tensor": _bucketize,
    "histc.default": _histc,
    "index.Tensor": _index,
    "index_put.default": _index_put,
    "searchsorted.Tensor": _bucketize,
    "slice_scatter.default": _slice_scatter,
    "topk.default": _topk,
}
