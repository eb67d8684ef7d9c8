"""Converters of what reads memory by its places: views with strides of their own, and windows."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.helpers import Converter, axis_of, dims
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of

op = relax.op


#: What reads or writes by places in memory, which are not those of torch where a tensor is not dense.
BY_PLACES = (
    torch.ops.aten.as_strided.default,
    torch.ops.aten.as_strided_copy.default,
    torch.ops.aten.as_strided_scatter.default,
)


def check_places(node: fx.Node) -> None:
    """ImportModelError where torch would read or write other places than in the module: tensors are dense here."""
    if node.target in BY_PLACES:
        x = node.args[0]
        if owner(x) is not x or not x.meta["val"].is_contiguous():
            raise ImportModelError(
                "it reads or writes memory by places, of a view or of what is not dense and of known shape; expected "
                "a tensor that is contiguous. Write it with slices, unfold or an index"
            )


def owner(node: fx.Node) -> fx.Node:
    """The node that computes the memory that the result of `node` is a view of: itself, or what it is made of."""
    whole = node.args[0] if node.target is operator.getitem else node
    schema = getattr(whole.target, "_schema", None)
    if schema is None or all(result.alias_info is None for result in schema.returns):
        return node
    return owner(whole.all_input_nodes[0])


def _as_strided(importer: Importer, node: fx.Node) -> relax.Expr:
    """Elements by their places in memory, which is that of the tensor that owns it."""
    size, stride = importer.arg(node, 1, "size"), importer.arg(node, 2, "stride")
    base, viewed = owner(node.args[0]), node.args[0].meta["val"]
    memory = base.meta["val"]
    offset = importer.arg(node, 3, "storage_offset", viewed.storage_offset())
    known = all(isinstance(value, int) for value in (*memory.shape, *memory.stride()))
    order = sorted(range(memory.dim()), key=lambda axis: (-memory.stride(axis), -memory.shape[axis])) if known else []
    is_dense = memory.permute(order).is_contiguous() if known else memory.is_contiguous()
    if not is_dense or memory.storage_offset() != 0 or isinstance(offset, torch.SymInt):
        raise ImportModelError("of memory whose layout is not that of a dense tensor")
    x = importer.env[base]
    if order != list(range(len(order))):
        x = importer.emit(op.permute_dims(x, order))
    flat = importer.emit(op.reshape(x, [-1]))
    return importer.emit(op.take(flat, _places(importer, size, stride, offset), axis=0, mode="clip"))


def _places(importer: Importer, size: Sequence[Any], stride: Sequence[Any], offset: Any) -> relax.Expr:
    """Where the elements of a view lie in memory: the sum of a step for each axis."""
    rank = len(size)
    if all(isinstance(value, int) for value in (*size, *stride, offset)):
        places = np.full([1] * rank, offset, "int64")
        for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
            places = places + np.arange(extent).reshape([-1 if i == axis else 1 for i in range(rank)]) * step
        return relax.const(places)
    places = importer.number(offset, "int64")
    for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
        steps = importer.emit(op.arange(0, extent, 1, "int64"))
        steps = importer.emit(op.multiply(steps, importer.number(step, "int64")))
        shape = [extent if i == axis else 1 for i in range(rank)]
        places = importer.emit(op.add(places, importer.emit(op.reshape(steps, shape))))
    return places


def _unfold(importer: Importer, node: fx.Node) -> relax.Expr:
    """Windows along an axis, one every so many elements; the elements of each are the last axis."""
    x, width, step = (importer.arg(node, i, "") for i in (0, 2, 3))
    rank = len(dims(x))
    if not rank:
        return importer.emit(op.reshape(x, importer.shape(node)))
    axis = axis_of(x, importer.arg(node, 1, "dimension"))
    count = importer.shape(node)[axis]
    places: Any = relax.const(np.arange(width)[None, :], "int64")
    if isinstance(count, int):
        places = relax.const(np.arange(count)[:, None] * step + np.arange(width))
    else:
        starts = importer.emit(op.arange(0, count * step, step, "int64"))
        places = importer.emit(op.add(importer.emit(op.expand_dims(starts, 1)), places))
    windows = importer.emit(op.take(x, places, axis=axis, mode="clip"))
    last = [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1]
    return windows if axis == rank - 1 else importer.emit(op.permute_dims(windows, last))


def _diagonal(importer: Importer, node: fx.Node) -> relax.Expr:
    """Of two axes the elements at the same places, in the last one."""
    x, shape = importer.arg(node, 0, "self"), importer.shape(node)
    offset = importer.arg(node, 1, "offset", 0)
    first, second = (axis_of(x, importer.arg(node, 2 + i, name, i)) for i, name in enumerate(("dim1", "dim2")))
    rows, columns = dims(x)[first], dims(x)[second]
    others = [axis for axis in range(len(dims(x))) if axis not in (first, second)]
    x = importer.emit(op.permute_dims(x, [*others, first, second]))
    x = importer.emit(op.reshape(x, [*dims(x)[:-2], rows * columns]))
    begin = max(offset, 0) + max(-offset, 0) * columns
    bounds = begin, begin + shape[-1] * (columns + 1), columns + 1
    if all(isinstance(bound, int) for bound in bounds):
        places = relax.const(np.arange(*bounds), "int64")
    else:
        places = importer.emit(op.arange(*bounds, "int64"))
    return importer.emit(op.take(x, places, axis=len(others), mode="clip"))


def _triangle(importer: Importer, node: fx.Node, lower: bool) -> relax.Expr:
    """What is on a diagonal, and below or above it; TVM has an operator for diagonals that are known."""
    diagonal = importer.arg(node, 1, "diagonal", 0)
    if isinstance(diagonal, int):
        return importer.convert_map[node.target.__name__](node)
    x = importer.arg(node, 0, "self")
    rows, columns = (importer.emit(op.arange(0, size, 1, "int64")) for size in dims(x)[-2:])
    last = importer.emit(op.add(importer.emit(op.expand_dims(rows, 1)), importer.number(diagonal, "int64")))
    kept = importer.emit((op.less_equal if lower else op.greater_equal)(columns, last))
    return importer.emit(op.where(kept, x, relax.const(0, dtype_of(x))))


#: Converters by the name of the overload.
STRIDES: dict[str, Converter] = {
    "as_strided.default": _as_strided,
    "as_strided_copy.default": _as_strided,
    "diagonal.default": _diagonal,
    "tril.default": partial(_triangle, lower=True),
    "triu.default": partial(_triangle, lower=False),
    "unfold.default": _unfold,
}
