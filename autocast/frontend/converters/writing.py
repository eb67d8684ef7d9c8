"""Converters of writing to places: by indices and reductions, where a mask is true, along diagonals and strides."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.helpers import Converter, axis_of, cast, dims
from autocast.frontend.converters.indexing import from_start, given_indices
from autocast.frontend.converters.movement import same_size
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of
from autocast.operators import own

op = relax.op

#: How torch calls reductions, and what scatter_elements calls them; a mean is a sum that is divided.
_REDUCTIONS = {
    **{"sum": "add", "add": "add", "mean": "add", "prod": "mul", "multiply": "mul"},
    **{"amax": "max", "amin": "min"},
}


def _scatter(importer: Importer, node: fx.Node, reduction: str = "update") -> relax.Expr:
    """`x.scatter(axis, index, source)`."""
    x, index, source = _along_an_axis(importer, node)
    axis = axis_of(x, node.args[1])
    return _shaped(importer, node, op.scatter_elements(x, index, source, axis=axis, reduction=reduction))


def _along_an_axis(importer: Importer, node: fx.Node) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """What is written into, the index and the part of the source that it covers; a scalar has one axis to torch."""
    x, index, source = (importer.arg(node, i, "") for i in (0, 2, 3))
    source = _source(importer, node, source, list(dims(index)))
    x, index, source = (value if dims(value) else importer.emit(op.reshape(value, [1])) for value in (x, index, source))
    return x, index, _covered(importer, source, dims(index))


def _shaped(importer: Importer, node: fx.Node, result: relax.Expr) -> relax.Expr:
    """A result, as a scalar if it is one."""
    result = importer.emit(result)
    return result if importer.shape(node) else importer.emit(op.reshape(result, []))


def _covered(importer: Importer, source: relax.Expr, shape: tuple[Any, ...]) -> relax.Expr:
    """The part of a source that an index of this shape covers: torch reads no more."""
    if dims(source) == shape:
        return source
    axes = list(range(len(shape)))
    return importer.emit(op.strided_slice(source, axes, [0] * len(shape), list(shape)))


def _source(importer: Importer, node: fx.Node, source: Any, shape: list[Any]) -> relax.Expr:
    """What is written: a number is the same everywhere."""
    if isinstance(source, relax.Expr) and isinstance(source.ty, relax.TensorType):
        return source
    dtype = importer.dtype(node)
    return importer.emit(op.full(relax.ShapeExpr(shape), relax.const(source, dtype), dtype))


def _scatter_with(importer: Importer, node: fx.Node) -> relax.Expr:
    """`x.scatter(axis, index, source, reduce=...)`."""
    reduction = _REDUCTIONS[node.kwargs["reduce"]]
    _check_gradient(importer, reduction)
    return _scatter(importer, node, reduction)


def _scatter_reduce(importer: Importer, node: fx.Node) -> relax.Expr:
    """`x.scatter_reduce(axis, index, source, reduce, include_self)`."""
    return _shaped(importer, node, _reduced(importer, node, _along_an_axis(importer, node)))


def _index_reduce(importer: Importer, node: fx.Node) -> relax.Expr:
    """`x.index_reduce(axis, index, source, reduce, include_self)`: rows are reduced, at the places of one index."""
    x, index, source = (importer.arg(node, i, "") for i in (0, 2, 3))
    if not dims(x):  # which has one axis to torch
        x, source = (importer.emit(op.reshape(value, [1])) for value in (x, source))
    axis, rank = axis_of(x, node.args[1]), len(dims(x))
    index = importer.emit(op.reshape(index, [-1 if at == axis else 1 for at in range(rank)]))
    index = importer.emit(op.broadcast_to(index, dims(source)))
    return _shaped(importer, node, _reduced(importer, node, (x, index, source)))


def _reduced(importer: Importer, node: fx.Node, values: tuple[relax.Expr, relax.Expr, relax.Expr]) -> relax.Expr:
    """Elements reduced with what was there, or without it: then from what changes no result."""
    (x, index, source), dtype = values, importer.dtype(node)
    name, with_self = importer.arg(node, 4, "reduce"), bool(importer.arg(node, 5, "include_self", True))
    reduction, axis = _REDUCTIONS[name], axis_of(x, node.args[1])
    _check_gradient(importer, reduction)
    if name == "mean" and "float" not in dtype:
        raise ImportModelError("the mean of integers")
    if not with_self:
        neutral = _source(importer, node, _neutral(reduction, node.meta["val"].dtype), list(dims(index)))
        x = importer.emit(op.scatter_elements(x, index, neutral, axis=axis, reduction="update"))
    result = importer.emit(op.scatter_elements(x, index, source, axis=axis, reduction=reduction))
    if name != "mean":
        return result
    ones = importer.emit(op.ones_like(source))
    counts = importer.emit(op.ones_like(x) if with_self else op.zeros_like(x))
    counts = importer.emit(op.scatter_elements(counts, index, ones, axis=axis, reduction="add"))
    return importer.emit(op.divide(result, importer.emit(op.maximum(counts, relax.const(1, dtype)))))


def _neutral(reduction: str, dtype: torch.dtype) -> Any:
    if reduction in ("add", "mul"):
        return int(reduction == "mul")
    if dtype.is_floating_point:
        return -np.inf if reduction == "max" else np.inf
    return torch.iinfo(dtype).min if reduction == "max" else torch.iinfo(dtype).max


def _check_gradient(importer: Importer, reduction: str) -> None:
    if importer.training and reduction == "mul":
        raise ImportModelError(f"the reduction {reduction!r} has no gradient here")


def _put(importer: Importer, node: fx.Node) -> relax.Expr:
    """`x.put(index, source, accumulate)`: at places of the flat tensor."""
    x, index, source = (importer.arg(node, i, "") for i in range(3))
    flat, places, values = (importer.emit(op.reshape(value, [-1])) for value in (x, index, source))
    places = from_start(importer, places, dims(flat)[0])
    reduction = "add" if importer.arg(node, 3, "accumulate", False) else "update"
    written = importer.emit(op.scatter_elements(flat, places, values, axis=0, reduction=reduction))
    return importer.emit(op.reshape(written, dims(x)))


def _masked_scatter(importer: Importer, node: fx.Node) -> relax.Expr:
    """The elements of the source, one after the other, where a mask is true."""
    x, mask, source = (importer.arg(node, i, "") for i in range(3))
    x, mask = (importer.emit(op.broadcast_to(value, importer.shape(node))) for value in (x, mask))
    return masked_scatter(importer, x, mask, cast(importer, source, importer.dtype(node)))


def masked_scatter(importer: Importer, x: relax.Expr, mask: relax.Expr, source: relax.Expr) -> relax.Expr:
    """`x`, with the elements of `source`, one after the other, where the mask of its shape is true."""
    flat = importer.emit(op.astype(op.reshape(mask, [-1]), "int64"))
    places = importer.emit(op.subtract(op.cumsum(flat, 0), relax.const(1, "int64")))
    source = _not_empty(importer, importer.emit(op.reshape(source, [-1])))
    values = importer.emit(op.take(source, places, axis=0, mode="clip"))
    return importer.emit(op.where(mask, op.reshape(values, dims(x)), x))


def _not_empty(importer: Importer, source: relax.Expr) -> relax.Expr:
    """What elements are taken from along its last axis: of none, which a call may have, none can be taken."""
    size = dims(source)[-1]
    if isinstance(size, int) and size:
        return source
    one = importer.emit(op.zeros([*dims(source)[:-1], 1], dtype_of(source)))
    return importer.emit(op.concat([source, one], -1))


def _masked_scatter_backward(importer: Importer, node: fx.Node) -> relax.Expr:
    """The adjoint of the source: the elements of a gradient where a mask is true, and zeros behind them."""
    g, mask, shape = importer.arg(node, 0, ""), importer.arg(node, 1, ""), importer.shape(node)
    count = math.prod(shape)
    mask = importer.emit(op.broadcast_to(mask, dims(g)))
    flat = importer.emit(op.astype(op.reshape(mask, [-1]), "int64"))
    places = importer.emit(op.multiply(op.cumsum(flat, 0), flat))  # the others go to the first, which is cut off
    zeros = importer.emit(op.zeros([count + 1], dtype_of(g)))
    written = importer.emit(own.index_copy(zeros, places, importer.emit(op.reshape(g, [-1])), axis=0))
    kept = importer.emit(op.strided_slice(written, [0], [1], [count + 1]))
    return importer.emit(op.reshape(kept, shape))


def _index_put(importer: Importer, node: fx.Node) -> relax.Expr:
    """`x[i, :, j] = values`, or added to it; a mask with one value is a choice.

    The axes of indices come first in values, or stay where indices are side by side.
    """
    x, indices, values = (importer.arg(node, i, "") for i in range(3))
    accumulate = bool(importer.arg(node, 3, "accumulate", False))
    values = cast(importer, values, importer.dtype(node))
    masks = [index for index in indices if index is not None and dtype_of(index) == "bool"]
    if masks:
        return _put_where(importer, x, indices, values, accumulate)
    given = given_indices(importer, node)
    if len(given) == 1 and not accumulate and len(dims(given[0][1])) == 1:
        ((axis, rows),) = given
        shape = [*importer.shape(node)]
        shape[axis] = dims(rows)[0]
        values = importer.emit(op.broadcast_to(values, shape))
        return importer.emit(own.index_copy(x, rows, values, axis=axis))
    given = [(axis, from_start(importer, index, dims(x)[axis])) for axis, index in given]
    axes = [axis for axis, _ in given]
    rest = [axis for axis in range(len(dims(x))) if axis not in axes]
    order = [*axes, *rest]
    moved = order != sorted(order)
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    before, beside = axes[0] if together else 0, [importer.shape(node)[axis] for axis in rest]
    index_shape = list(torch.broadcast_shapes(*(node.args[1][axis].meta["val"].shape for axis in axes)))
    index_shape = [importer.dim(size) for size in index_shape]
    count = len(index_shape)
    whole = [*beside[:before], *index_shape, *beside[before:]]
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
    """`x[:, mask] = values`: the same at all places of the mask, or, for one of the first axes, one after the other."""
    before = next(axis for axis, index in enumerate(indices) if index is not None)
    mask, rank = indices[before], len(dims(x))
    rest = rank - before - len(dims(mask))
    if any(index is not None for index in indices[before + 1 :]):
        raise ImportModelError("writing where a mask is true, and by other indices")
    for axis, size in enumerate(dims(mask)):  # which torch compares with those of `x` when it runs
        if not same_size(size, dims(x)[before + axis]):
            places = importer.emit(op.arange(0, dims(x)[before + axis], 1, "int64"))
            mask = importer.emit(op.take(mask, places, axis=axis, mode="clip"))
    shape, one_for_all = dims(values), [*dims(values)]
    if len(shape) > rest:  # the axis that counts the places
        one_for_all[len(shape) - rest - 1 : len(shape) - rest] = [1] * len(dims(mask))
    mask = importer.emit(op.reshape(mask, [*[1] * before, *dims(mask), *[1] * rest]))
    if len(shape) <= rest or same_size(shape[-rest - 1], 1):
        value = importer.emit(op.reshape(values, one_for_all))
        return importer.emit(op.where(mask, op.add(x, value) if accumulate else value, x))
    if before:
        raise ImportModelError("writing different values where a mask of later axes is true")
    values = importer.emit(op.broadcast_to(values, [shape[0], *dims(x)[rank - rest :]]))
    mask, base = importer.emit(op.broadcast_to(mask, dims(x))), importer.emit(op.zeros_like(x)) if accumulate else x
    written = masked_scatter(importer, base, mask, values)
    return importer.emit(op.add(x, written)) if accumulate else written


def _diagonal_scatter(importer: Importer, node: fx.Node) -> relax.Expr:
    """A tensor with other elements along a diagonal: where columns are `offset` more than rows."""
    x, source = importer.arg(node, 0, "self"), importer.arg(node, 1, "src")
    offset, first, second = (int(importer.arg(node, i, "", default)) for i, default in ((2, 0), (3, 0), (4, 1)))
    rank = len(dims(x))
    order = [axis for axis in range(rank) if axis not in (first % rank, second % rank)] + [first % rank, second % rank]
    x = importer.emit(op.permute_dims(x, order))
    rows, columns = (importer.emit(op.arange(0, size, 1, "int64")) for size in dims(x)[-2:])
    apart = importer.emit(op.subtract(columns, importer.emit(op.expand_dims(rows, 1))))
    places = importer.emit(op.subtract(rows, relax.const(max(-offset, 0), "int64")))
    taken = importer.emit(op.take(_not_empty(importer, source), places, axis=-1, mode="clip"))
    values = importer.emit(op.expand_dims(taken, -1))
    written = importer.emit(op.where(importer.emit(op.equal(apart, relax.const(offset, "int64"))), values, x))
    return importer.emit(op.permute_dims(written, [int(axis) for axis in np.argsort(order)]))


def _strided_scatter(importer: Importer, node: fx.Node) -> relax.Expr:
    """A tensor with other elements at places in its memory, which are those of a strided view."""
    x, source, meta = importer.arg(node, 0, "self"), importer.arg(node, 1, "src"), node.args[0].meta["val"]
    size, stride, offset = list(node.args[2]), list(node.args[3]), importer.arg(node, 4, "storage_offset") or 0
    if not all(isinstance(value, int) for value in (*size, *stride, offset)) or not meta.is_contiguous():
        raise ImportModelError("of memory whose layout is not that of a dense tensor of known shape")
    count = _count(dims(x))
    places = np.lib.stride_tricks.as_strided(np.arange(count)[offset:], size, [8 * step for step in stride])
    return _written_at(importer, x, source, places)


def _count(shape: tuple[Any, ...]) -> int:
    if not all(isinstance(size, int) for size in shape):
        raise ImportModelError("of a tensor whose shape is known only at run time")
    return int(np.prod(shape))


def _written_at(importer: Importer, x: relax.Expr, source: relax.Expr, places: np.ndarray) -> relax.Expr:
    """`x` with a source at places of its flat tensor."""
    flat, values = (importer.emit(op.reshape(value, [-1])) for value in (x, source))
    written = importer.emit(own.index_copy(flat, relax.const(places.reshape(-1).copy()), values, axis=0))
    return importer.emit(op.reshape(written, dims(x)))


#: Converters by the name of the overload.
WRITING: dict[str, Converter] = {
    "as_strided_scatter.default": _strided_scatter,
    "diagonal_scatter.default": _diagonal_scatter,
    "index_put.default": _index_put,
    "index_reduce.default": _index_reduce,
    "masked_scatter.default": _masked_scatter,
    "masked_scatter_backward.default": _masked_scatter_backward,
    "put.default": _put,
    "scatter.reduce": _scatter_with,
    "scatter.src": _scatter,
    "scatter.value": _scatter,
    "scatter.value_reduce": _scatter_with,
    "scatter_add.default": partial(_scatter, reduction="add"),
    "scatter_reduce.two": _scatter_reduce,
}
