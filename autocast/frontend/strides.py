"""Converters of what reads memory by its places: views with strides of their own, and windows."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.helpers import Converter, axis_of, dims
from autocast.frontend.importer import Importer

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
    size, stride = list(node.args[1]), list(node.args[2])
    base, viewed = owner(node.args[0]), node.args[0].meta["val"]
    memory = base.meta["val"]
    offset = importer.arg(node, 3, "storage_offset", viewed.storage_offset())
    known = all(isinstance(value, int) for value in (*memory.shape, *memory.stride(), *size, *stride, offset))
    order = sorted(range(memory.dim()), key=lambda axis: (-memory.stride(axis), -memory.shape[axis])) if known else []
    if not known or not memory.permute(order).is_contiguous() or memory.storage_offset() != 0:
        raise ImportModelError("of memory whose layout is not that of a dense tensor of known shape")
    places = np.full([1] * len(size), offset, "int64")
    for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
        places = places + np.arange(extent).reshape([-1 if i == axis else 1 for i in range(len(size))]) * step
    x = importer.env[base]
    if order != list(range(len(order))):
        x = importer.emit(op.permute_dims(x, order))
    flat = importer.emit(op.reshape(x, [-1]))
    return importer.emit(op.take(flat, relax.const(places), axis=0, mode="clip"))


def _unfold(importer: Importer, node: fx.Node) -> relax.Expr:
    """Windows along an axis, one every so many elements; the elements of each are the last axis."""
    x, width, step = (importer.arg(node, i, "") for i in (0, 2, 3))
    rank = len(dims(x))
    if not rank:
        return importer.emit(op.reshape(x, importer.shape(node)))
    axis = axis_of(x, importer.arg(node, 1, "dimension"))
    count = importer.shape(node)[axis]
    places: Any = relax.const(np.arange(width)[None, :])
    if isinstance(count, int):
        places = relax.const(np.arange(count)[:, None] * step + np.arange(width))
    else:
        starts = importer.emit(op.arange(0, count * step, step, "int64"))
        places = importer.emit(op.add(importer.emit(op.expand_dims(starts, 1)), places))
    windows = importer.emit(op.take(x, places, axis=axis, mode="clip"))
    last = [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1]
    return windows if axis == rank - 1 else importer.emit(op.permute_dims(windows, last))


#: Converters by the name of the overload.
STRIDES: dict[str, Converter] = {
    "as_strided.default": _as_strided,
    "as_strided_copy.default": _as_strided,
    "unfold.default": _unfold,
}
