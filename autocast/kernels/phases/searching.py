"""Sorts, medians and means of what is scattered that TVM has a type for and computes wrongly, or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, tirx

from autocast.ir import dims, dtype_of
from autocast.kernels.storage import LOW

op = relax.op

Emit = Callable[[relax.Expr], relax.Expr]


def sort(_: Emit, call: relax.Call, x: relax.Expr) -> relax.Expr | None:
    """Of one element without axes, itself; TVM looks for an axis, and crashes."""
    return None if dims(x) else x


def argsort(_: Emit, call: relax.Call, x: relax.Expr) -> relax.Expr | None:
    """Of one element without axes, its place: the first."""
    return None if dims(x) else relax.const(0, dtype_of(call))


def topk(_: Emit, call: relax.Call, x: relax.Expr) -> relax.Expr | None:
    """Of fewer elements than are asked for, all: TVM's kernel writes as many as are asked for, whatever it finds, and
    takes no number below 0, which stands for all."""
    size, asked = dims(x)[int(call.attrs.axis)], call.attrs
    count = max(0, min(int(asked.k), size) if isinstance(size, int) else int(asked.k))
    if count == int(asked.k):
        return None
    return op.topk(x, count, int(asked.axis), str(asked.ret_type), bool(asked.largest), str(asked.dtype))


def median(emit: Emit, call: relax.Call, x: relax.Expr) -> relax.Expr:
    """The lower of two in the middle, and where along its axis the first such is: NaN where there is one.

    TVM crashes where there are several axes, and returns one axis where all were to be kept.
    """
    sizes = dims(x)
    axes = [int(axis) % max(len(sizes), 1) for axis in call.attrs.axis or range(len(sizes))]
    axis = axes[0] if axes else 0
    if len(axes) != 1:
        rest = [i for i in range(len(sizes)) if i not in axes]
        if rest:
            x = emit(op.permute_dims(x, [*rest, *axes]))
        x = emit(op.reshape(x, [*(sizes[i] for i in rest), math.prod(sizes[i] for i in axes)]))
        axis = len(rest)
    place = _middle(emit, x, axis)
    found = [emit(op.gather_elements(emit(op.sort(x, axis)), place, axis))]
    has_places = hasattr(call.ty, "fields")
    if has_places:
        found.append(emit(op.gather_elements(emit(op.argsort(x, axis, dtype="int64")), place, axis)))
    types = call.ty.fields if has_places else [call.ty]
    found = [emit(op.reshape(value, ty.shape)) for value, ty in zip(found, types, strict=True)]
    return relax.Tuple(found) if has_places else found[0]


def _middle(emit: Emit, x: relax.Expr, axis: int) -> relax.Expr:
    """Where the median is in a sorted row, which ends with its NaN: the first of these, or the middle."""
    sizes = dims(x)
    kept = [1 if i == axis else size for i, size in enumerate(sizes)]
    middle, last = (op.full(kept, _number(emit, n), "int64") for n in ((sizes[axis] - 1) // 2, sizes[axis]))
    if "float" not in str(dtype_of(x)):
        return emit(middle)
    unknown = emit(op.sum(emit(op.astype(emit(op.isnan(x)), "int64")), axis, keepdims=True))
    complete = emit(op.equal(unknown, relax.const(0, "int64")))
    return emit(op.where(complete, emit(middle), emit(op.subtract(emit(last), unknown))))


def _number(emit: Emit, size: Any) -> relax.Expr:
    """A size as a tensor without dimensions."""
    if isinstance(size, int | tirx.IntImm):
        return relax.const(int(size), "int64")
    return emit(op.reshape(emit(op.shape_to_tensor(relax.ShapeExpr([size]))), []))


#: What truth values are scattered by, as 0 and 1: their sum is whether one of them is true.
_OF_TRUTH = {"add": "max", "max": "max", "mul": "min", "min": "min", "mean": "min"}


def scatter(emit: Emit, call: relax.Call, x: relax.Expr, indices: relax.Expr, updates: relax.Expr) -> relax.Expr | None:
    """The mean of an element and all that is scattered to it: TVM halves one after the other, and refuses blocks.

    Of truth values TVM compiles no sum, nor anything but `update`.
    """
    options = {"axis": int(call.attrs.axis)} if call.op.name == "relax.scatter_elements" else {}
    function, reduction = op.scatter_elements if options else op.scatter_nd, str(call.attrs.reduction)
    if dtype_of(x) == "bool" and reduction in _OF_TRUTH:
        x, updates = (emit(op.astype(values, "int8")) for values in (x, updates))
        return op.astype(emit(function(x, indices, updates, **options, reduction=_OF_TRUTH[reduction])), "bool")
    if reduction != "mean":
        return None

    def added(data: relax.Expr, values: relax.Expr) -> relax.Expr:
        return emit(function(data, indices, values, **options, reduction="add"))

    low = dtype_of(x) in LOW
    if low:
        x, updates = (emit(op.astype(values, "float32")) for values in (x, updates))
    one = relax.const(1, dtype_of(x))
    counts = added(emit(op.full_like(x, one)), emit(op.full_like(updates, one)))
    divide = op.divide if "float" in str(dtype_of(x)) else op.floor_divide
    mean = divide(added(x, updates), counts)
    return op.astype(emit(mean), dtype_of(call)) if low else mean
