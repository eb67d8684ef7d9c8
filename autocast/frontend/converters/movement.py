"""Converters of indexing, reshaping, joining, choosing and filling."""

from __future__ import annotations

import math
import sys
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import fx
from tvm import relax, tirx

from autocast.errors import ImportModelError
from autocast.frontend.converters.helpers import Converter, axis_of, cast, dims
from autocast.frontend.exporting.conditions import never_negative
from autocast.frontend.importing.found_sizes import match_place
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of, is_constant, is_tensor


def _index_select(importer: Importer, node: fx.Node) -> relax.Expr:
    x, index = importer.arg(node, 0, "self"), importer.arg(node, 2, "index")
    if not dims(x):
        return importer.emit(relax.op.reshape(x, importer.shape(node)))
    return importer.emit(relax.op.take(x, index, axis=axis_of(x, node.args[1]), mode="clip"))


def _select(importer: Importer, node: fx.Node) -> relax.Expr:
    """`x.select(axis, index)`: a slice of one and a squeeze, never a `take` out of bounds."""
    x, index = importer.arg(node, 0, "self"), importer.arg(node, 2, "index")
    axis = axis_of(x, node.args[1])
    if isinstance(index, relax.Expr) and isinstance(index.ty, relax.TensorType):
        return importer.emit(relax.op.take(x, index, axis=axis, mode="wrap"))
    begin = dims(x)[axis] + index if isinstance(index, int) and index < 0 else index
    part = importer.emit(relax.op.strided_slice(x, [axis], [begin], [begin + 1], assume_inbound=True))
    return importer.emit(relax.op.squeeze(part, [axis]))


def _unbind(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    """The slices of one along an axis of known size, without the axis."""
    x = importer.arg(node, 0, "self")
    axis = axis_of(x, importer.arg(node, 1, "dim", 0))
    size = dims(x)[axis]
    if not isinstance(size, int):
        raise ImportModelError("an axis whose size is known only at run time")
    parts = (relax.op.strided_slice(x, [axis], [i], [i + 1], assume_inbound=True) for i in range(size))
    return [importer.emit(relax.op.squeeze(importer.emit(part), [axis])) for part in parts]


def _slice(importer: Importer, node: fx.Node) -> relax.Expr:
    x, step = importer.arg(node, 0, "self"), importer.arg(node, 4, "step", 1)
    axis = axis_of(x, node.args[1] if len(node.args) > 1 else 0)
    count = node.meta["val"].shape[axis]
    if not isinstance(count, int) and not importer.found.knows(count):
        return _slice_that_values_end(importer, node, x, axis)
    start, end = slice_bounds(importer, node, dims(x)[axis], axis, 2)
    if isinstance(start, int) and start == 0 and step == 1 and same_size(end, dims(x)[axis]):
        return x
    return importer.emit(relax.op.strided_slice(x, [axis], [start], [end], [step], assume_inbound=True))


def _slice_that_values_end(importer: Importer, node: fx.Node, x: relax.Expr, axis: int) -> relax.Expr:
    """`x[a:b]` by numbers that may be below 0 or beyond the axis, for all that torch knows: computed as tensors, as no
    size is below 0."""
    size, step = dims(x)[axis], int(importer.arg(node, 4, "step", 1))
    start, end = (_place(importer, node, at, size) for at in (2, 3))
    missing = importer.emit(relax.op.maximum(importer.emit(relax.op.subtract(end, start)), relax.const(0, "int64")))
    count, value = importer.emit(relax.op.add(missing, relax.const(step - 1, "int64"))), node.meta["val"].shape[axis]
    count = importer.emit(relax.op.floor_divide(count, relax.const(step, "int64")))
    builder = importer.block_builder
    importer.found.match_count(builder, count, value, node.args[0].meta["val"].shape[axis])
    begin = match_place(builder, start, builder.get_unique_name("begin"))
    end = begin + importer.dim(value) * step
    return importer.emit(relax.op.strided_slice(x, [axis], [begin], [end], [step], assume_inbound=True))


def _place(importer: Importer, node: fx.Node, at: int, size: Any) -> relax.Expr:
    """A slice's bound, counted from the start and within the axis, as a 0-d tensor."""
    given, whole = node.args[at] if len(node.args) > at else None, importer.number(size, "int64")
    if given is None or (isinstance(given, int) and given >= sys.maxsize):
        return whole if at == 3 else importer.number(0, "int64")
    value = (
        importer.numbers[given] if given in importer.numbers else importer.number(importer.arg(node, at, ""), "int64")
    )
    zero = relax.const(0, "int64")
    counted = relax.op.where(relax.op.less(value, zero), relax.op.add(value, whole), value)
    return importer.emit(relax.op.maximum(relax.op.minimum(importer.emit(counted), whole), zero))


def slice_bounds(importer: Importer, node: fx.Node, size: Any, axis: int, position: int) -> tuple[Any, Any]:
    """Where a slice of an axis begins and ends, counted from the start and clipped to the axis, as Python does.

    Where the model's sizes decide, torch clipped as those of the example ask for, and found this to hold for all.

    Parameters
    ----------
    importer, node
        Of a slice, or of what is written by one.
    size : int or PrimExpr
        Of the axis.
    axis : int
        Of what is sliced, as torch knows it.
    position : int
        Of the argument `start`; `end` is the next.
    """
    known = _example(node.args[0].meta["val"].shape[axis])
    bounds = []
    for at, (name, whole) in enumerate((("start", (0, 0)), ("end", (size, known))), position):
        given = node.args[at] if len(node.args) > at else node.kwargs.get(name)
        if given is None or (isinstance(given, int) and given >= sys.maxsize):
            bounds.append(whole)
        else:
            bounds.append(_clipped(importer.arg(node, at, name), _example(given), size, known))
    (start, first), (end, last) = bounds
    if first is None or last is None:
        return start, end if isinstance(start, int) and start == 0 else tirx.max(end, start)
    return start, start if last < first else end


def _clipped(value: Any, example: int | None, size: Any, known: int | None) -> tuple[Any, int | None]:
    """A slice's bound, and what it is for the example."""
    if example is None or known is None:  # values decide; of those that a bound is torch knows that it is within
        if not isinstance(value, int):
            return value, None
        return (tirx.max(size + value, 0) if value < 0 else tirx.min(value, size) if value else 0), None
    if example < 0:
        value, example = size + value, known + example
    if example < 0:
        return 0, 0
    return (size, known) if example > known else (value, example)


def _example(size: Any) -> int | None:
    """What a number, or what computes one of sizes, is for the example; None where values decide it."""
    size = size.meta["val"] if isinstance(size, fx.Node) else size
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _pad(importer: Importer, node: fx.Node) -> relax.Expr:
    """Numbers before and after; where sizes say how many, what is put beside it may be empty."""
    amounts, given = importer.arg(node, 1, "pad"), node.args[1]
    x, value, dtype = importer.arg(node, 0, "self"), importer.arg(node, 2, "value", 0), importer.dtype(node)
    if all(isinstance(amount, int) for amount in amounts) and isinstance(value, int | float):
        return importer.convert_map["constant_pad_nd.default"](node)
    number = _number(importer, value, dtype)
    for place, amount in enumerate(amounts):
        if isinstance(amount, int) and amount == 0:
            continue
        if not never_negative(given[place], importer.program):
            raise ImportModelError("it pads by what may be below 0 for some sizes; cut the tensor first")
        axis = len(dims(x)) - 1 - place // 2
        shape = [*dims(x)[:axis], amount, *dims(x)[axis + 1 :]]
        numbers = importer.emit(_filled(shape, number))
        x = importer.emit(relax.op.concat([x, numbers] if place % 2 else [numbers, x], axis=axis))
    return x


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes, known now or when the model runs, are written alike."""
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b) or str(a) == str(b)


def _split(importer: Importer, node: fx.Node) -> relax.Expr | list[relax.Expr]:
    """Parts of these sizes, one after the other; sizes may be 0, or known only at run time."""
    x, sizes = importer.arg(node, 0, "self"), importer.arg(node, 1, "split_sizes")
    axis = axis_of(x, importer.arg(node, 2, "dim", 0))
    if len(sizes) == 1:
        return [x]
    ends = list(accumulate(sizes))
    if all(isinstance(size, int) and size > 0 for size in sizes):  # TVM's split has no parts without elements
        return importer.emit(relax.op.split(x, ends[:-1], axis))
    places = pairwise([0, *ends])
    return [importer.emit(relax.op.strided_slice(x, [axis], [a], [b], assume_inbound=True)) for a, b in places]


def _to_dtype(importer: Importer, node: fx.Node) -> relax.Expr:
    return cast(importer, importer.arg(node, 0, "self"), importer.dtype(node))


def _same_value(importer: Importer, node: fx.Node) -> relax.Expr:
    return importer.arg(node, 0, "self")


def _copy(importer: Importer, node: fx.Node) -> relax.Expr:
    """What `x.copy_(source)` leaves in x."""
    source = cast(importer, importer.arg(node, 1, "src"), importer.dtype(node))
    return importer.emit(relax.op.broadcast_to(source, importer.shape(node)))


def _reshape(importer: Importer, node: fx.Node) -> relax.Expr:
    """Where one size is left out, torch divides by the others, and has quotients for sizes that are given, too."""
    given = node.args[1]
    whole = importer.shape(node)  # of complex numbers that of pairs
    shape = [g if isinstance(g, int) and g >= 0 else s for g, s in zip(given, whole, strict=False)]
    return importer.emit(relax.op.reshape(importer.arg(node, 0, "self"), [*shape, *whole[len(shape) :]]))


def _expand(importer: Importer, node: fx.Node) -> relax.Expr:
    return importer.emit(relax.op.broadcast_to(importer.arg(node, 0, "self"), importer.shape(node)))


def _repeat(importer: Importer, node: fx.Node) -> relax.Expr:
    """Relax tiles by numbers alone; times that vary are an axis of their own before each, and merged with it."""
    x, times = importer.arg(node, 0, "self"), node.args[1]
    if all(isinstance(one, int) for one in times):
        return importer.emit(relax.op.tile(x, list(times)))
    counts = [importer.dim(one.meta["val"]) if isinstance(one, fx.Node) else one for one in times]
    sizes = [1] * (len(counts) - len(dims(x))) + list(dims(x))
    apart = importer.emit(relax.op.reshape(x, [extent for size in sizes for extent in (1, size)]))
    pairs = [extent for pair in zip(counts, sizes, strict=True) for extent in pair]
    return importer.emit(relax.op.reshape(importer.emit(relax.op.broadcast_to(apart, pairs)), importer.shape(node)))


def _resize(importer: Importer, node: fx.Node) -> relax.Expr:
    """The first elements in memory in another shape; of more than there are, the rest are 0."""
    x, shape, meta = importer.arg(node, 0, "self"), importer.shape(node), node.args[0].meta["val"]
    known = all(isinstance(size, int) for size in (*dims(x), *shape))
    if not known or not meta.is_contiguous() or node.kwargs.get("memory_format") is not None:
        raise ImportModelError("memory whose layout is not that of a dense tensor of known shape")
    flat, count, wanted = importer.emit(relax.op.reshape(x, [-1])), math.prod(dims(x)), math.prod(shape)
    if wanted > count:
        flat = importer.emit(relax.op.nn.pad(flat, [0, wanted - count]))
    elif wanted < count:
        flat = importer.emit(relax.op.strided_slice(flat, [0], [0], [wanted], assume_inbound=True))
    return importer.emit(relax.op.reshape(flat, shape))


def _matrix_transposed(importer: Importer, node: fx.Node) -> relax.Expr:
    x = importer.arg(node, 0, "self")
    return importer.emit(relax.op.permute_dims(x)) if len(dims(x)) == 2 else x


def _permute(importer: Importer, node: fx.Node) -> relax.Expr:
    x = importer.arg(node, 0, "self")
    return importer.emit(relax.op.permute_dims(x, [axis_of(x, axis) for axis in node.args[1]])) if dims(x) else x


def _squeeze(importer: Importer, node: fx.Node) -> relax.Expr:
    """Torch leaves axes alone whose size is not 1."""
    x, axes = importer.arg(node, 0, "self"), node.args[1]
    shape = dims(x)
    axes = axes if isinstance(axes, list | tuple) else [axes]
    named = [axis_of(x, a) for a in axes] if shape else []
    ones = [a for a in named if isinstance(shape[a], int) and shape[a] == 1]
    return importer.emit(relax.op.squeeze(x, ones)) if ones else x


def _cat(importer: Importer, node: fx.Node) -> relax.Expr:
    """Inputs of one common dtype; torch ignores empty ones of rank 1."""
    parts = [x for x in importer.arg(node, 0, "tensors") if dims(x) != (0,) or len(importer.shape(node)) == 1]
    parts = [cast(importer, x, importer.dtype(node)) for x in parts]
    axis = importer.arg(node, 1, "dim", 0) % len(importer.shape(node))
    return parts[0] if len(parts) == 1 else importer.emit(relax.op.concat(parts, axis=axis))


def _where(importer: Importer, node: fx.Node) -> relax.Expr:
    """Either branch may be a number."""
    dtype, condition = importer.dtype(node), importer.arg(node, 0, "condition")
    branches = (importer.arg(node, i, "") for i in (1, 2))
    x, y = (cast(importer, b, dtype) if isinstance(b, relax.Expr) else relax.const(b, dtype) for b in branches)
    return importer.emit(relax.op.where(condition, x, y))


def _full(importer: Importer, node: fx.Node) -> relax.Expr:
    """Every `full`, `full_like` and `new_full`; the value is a number, a size, or what a tensor holds."""
    position = 2 if node.target is torch.ops.aten.new_full.default else 1
    value, dtype = importer.arg(node, position, "fill_value"), importer.dtype(node)
    return importer.emit(_filled(importer.shape(node), _number(importer, value, dtype)))


def _filled(shape: list[Any], number: relax.Expr) -> relax.Expr:
    """A tensor of a number, which a 0-d tensor holds."""
    known = is_constant(number)
    return relax.op.full(shape, number, dtype_of(number)) if known else relax.op.broadcast_to(number, shape)


def _scalar_tensor(importer: Importer, node: fx.Node) -> relax.Expr:
    return _number(importer, importer.arg(node, 0, "s"), importer.dtype(node))


def _number(importer: Importer, value: Any, dtype: str) -> relax.Expr:
    """A number, a size, or what a tensor holds, as a 0-d tensor."""
    if isinstance(value, bool | int | float):
        return relax.const(value, dtype)
    return cast(importer, value if is_tensor(value) else importer.number(value, "int64"), dtype)


def _empty(importer: Importer, node: fx.Node) -> relax.Expr:
    """Zeros: torch leaves the values undefined, a compiled program is to give the same ones each time."""
    return importer.emit(relax.op.zeros(importer.shape(node), importer.dtype(node)))


def _get_item(importer: Importer, node: fx.Node) -> relax.Expr | None:
    """One of several results; None for one that nobody reads and no converter makes."""
    values, index = importer.arg(node, 0, ""), node.args[1]
    if isinstance(values, list | tuple):
        return values[index] if index < len(values) else None
    return importer.emit(relax.TupleGetItem(values, index))


def _sym_size(importer: Importer, node: fx.Node) -> Any:
    return importer.dim(node.meta["val"])


def _unsqueeze(importer: Importer, node: fx.Node) -> relax.Expr:
    return importer.emit(relax.op.expand_dims(importer.arg(node, 0, "self"), node.args[1]))


#: Converters by the name of the overload.
MOVEMENT: dict[str, Converter] = {
    "_to_copy.default": _to_dtype,
    "alias.default": _same_value,
    "cat.default": _cat,
    "clone.default": _same_value,
    "constant_pad_nd.default": _pad,
    "copy.default": _copy,
    "prims::copy_strided.default": _same_value,
    "empty.memory_format": _empty,
    "empty_permuted.default": _empty,
    "empty_strided.default": _empty,
    "expand.default": _expand,
    "full.default": _full,
    "full_like.default": _full,
    "new_empty_strided.default": _empty,
    "new_full.default": _full,
    "permute_copy.default": _permute,
    "t.default": _matrix_transposed,
    "repeat.default": _repeat,
    "resize.default": _resize,
    "getitem": _get_item,
    "index_select.default": _index_select,
    "scalar_tensor.default": _scalar_tensor,
    "select.int": _select,
    "slice.Tensor": _slice,
    "split_with_sizes.default": _split,
    "squeeze.dims": _squeeze,
    "sym_size.int": _sym_size,
    "unbind.int": _unbind,
    "unsqueeze.default": _unsqueeze,
    "view.default": _reshape,
    "_unsafe_view.default": _reshape,
    "view_copy.default": _reshape,
    "view_as_complex.default": _same_value,
    "view_as_real.default": _same_value,
    "where.Scalar": _where,
    "where.self": _where,
    "where.ScalarOther": _where,
    "where.ScalarSelf": _where,
}
