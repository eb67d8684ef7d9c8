"""Reading and writing elements by index: the adjoint of a read is a sum of writes, and of a write a read."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax
from tvm.relax import op

from autocast.errors import GradientError
from autocast.ir import dtype_of
from autocast.operators import own
from autocast.training.gradients.registry import (
    Adjoint,
    Backward,
    gradient,
    not_differentiable,
    zero_gradient,
)
from autocast.training.gradients.shapes import known_shape, number, rank, same_shape, unbroadcast

_TAKE_BACKWARD = tvm.ir.Op.get("relax.grad.take_backward")


def zeros_like(expr: relax.Expr) -> relax.Expr:
    """Zeros of the shape and dtype of `expr`."""
    return op.zeros(relax.ShapeExpr(known_shape(expr)), dtype_of(expr))


def _take(b: Backward) -> list[Adjoint]:
    """One operator adds each row to its place; its indices are a vector, as TVM wants them."""
    x, indices = b.call.args
    axis = int(b.call.attrs.axis or 0) % rank(x)
    adjoint = b.adjoint
    if rank(indices) != 1:
        before = known_shape(b.result)[:axis]
        after = known_shape(b.result)[len(before) + rank(indices) :]
        count = math.prod(known_shape(indices))
        adjoint = b.emit(op.reshape(adjoint, relax.ShapeExpr([*before, count, *after])))
        indices = b.emit(op.reshape(indices, relax.ShapeExpr([count])))
    if str(b.call.attrs.mode) == "wrap":
        length = b.emit(op.shape_to_tensor(relax.ShapeExpr([known_shape(x)[axis]])))
        indices = b.emit(op.floor_mod(indices, b.emit(op.astype(length, dtype_of(indices)))))
    return [relax.Call(_TAKE_BACKWARD, [adjoint, x, indices], b.call.attrs), None]


def _gather_elements(b: Backward) -> list[Adjoint]:
    x, indices = b.call.args
    return [op.scatter_elements(zeros_like(x), indices, b.adjoint, int(b.call.attrs.axis), "add"), None]


def _gather_nd(b: Backward) -> list[Adjoint]:
    x, indices = b.call.args
    if int(b.call.attrs.batch_dims):
        raise GradientError(f"batch_dims={int(b.call.attrs.batch_dims)}; expected 0")
    return [op.scatter_nd(zeros_like(x), indices, b.adjoint, "add"), None]


def _index_tensor(b: Backward) -> list[Adjoint]:
    """Where each element along the first axes has an index, `index_put`; where whole rows have, `scatter_nd`.

    `index_put` gets vectors: of other indices TVM prints warnings, each time that it asks for a type. Of as many as
    sizes say it has no kernel.
    """
    x, indices = b.call.args
    shape = known_shape(b.result)
    shape = shape[: len(shape) - rank(x) + len(indices.ty.fields)]
    columns = [b.emit(relax.TupleGetItem(indices, i)) for i in range(len(indices.ty.fields))]
    columns = [
        column if same_shape(known_shape(column), shape) else b.emit(op.broadcast_to(column, relax.ShapeExpr(shape)))
        for column in columns
    ]
    if len(columns) == rank(x) and all(isinstance(size, int) for size in shape):
        count = relax.ShapeExpr([math.prod(shape)])
        columns = [b.emit(op.reshape(column, count)) for column in columns]
        adjoint = b.emit(op.reshape(b.adjoint, count))
        return [op.index_put(zeros_like(x), relax.Tuple(columns), adjoint, accumulate=True), None]
    columns = [b.emit(op.expand_dims(op.astype(column, "int64"), -1)) for column in columns]
    return [op.scatter_nd(zeros_like(x), b.emit(op.concat(columns, -1)), b.adjoint, "add"), None]


def _numbers(argument: relax.Expr) -> list:
    """A tuple of literal numbers, as strided_slice takes them: ints, or symbolic sizes."""
    values = [getattr(field, "value", field) for field in argument.fields]
    return [int(value) if isinstance(value, int | tvm.tirx.IntImm) else value for value in values]


def _strided_slice(b: Backward) -> list[Adjoint]:
    """The adjoint with zeros around it and, where the slice took steps, between its elements."""
    x, *arguments = b.call.args
    axes, begin, _, *steps = (_numbers(argument) for argument in arguments)
    strides = steps[0] if steps else [1] * len(axes)
    adjoint, sizes, target = b.adjoint, list(known_shape(b.result)), known_shape(x)
    widths = [0] * (2 * len(sizes))
    for axis, first, stride in zip(axes, begin, strides, strict=True):
        axis = int(axis) % len(sizes)
        size, count = target[axis], sizes[axis]
        if not all(isinstance(value, int) for value in (first, stride, size, count)):
            if not (isinstance(first, int) and first == 0 and stride == 1 and _same(size, count)):
                first = _begin(first, size, bool(b.call.attrs.assume_inbound))
                adjoint = _surrounded(b, adjoint, sizes, axis, (first, stride, size))
                sizes[axis] = size
            continue
        first = min(max(first + size if first < 0 else first, 0), size - 1)
        if stride < 0:
            adjoint, first, stride = op.flip(adjoint, axis), first + (count - 1) * stride, -stride
        if stride > 1 and count > 1:
            flat, sizes[axis] = _apart(b, adjoint, sizes, axis, stride), (count - 1) * stride + 1
            adjoint = b.emit(op.strided_slice(flat, [axis], [0], [sizes[axis]]))
        widths[2 * axis : 2 * axis + 2] = first, size - first - sizes[axis]
    padded = op.nn.pad(adjoint, widths) if any(widths) else adjoint
    return [padded, *[None] * len(arguments)]


def _begin(first: Any, size: Any, inbound: bool) -> Any:
    """Where a slice begins, counted from the start of an axis whose size is known at run time only."""
    if isinstance(first, int) and first < 0:
        first = first + size
        return first if inbound else tvm.tirx.max(first, 0)
    return first if inbound else tvm.tirx.min(first, size)


def _surrounded(b: Backward, adjoint: relax.Expr, sizes: list, axis: int, place: tuple) -> relax.Expr:
    """The adjoint among zeros along an axis, where sizes that are known at run time only say how many there are.

    `place` is where the slice began, its step, and the size of the axis.
    """
    first, stride, size = place
    if not isinstance(stride, int) or stride < 1:
        raise GradientError(f"a slice of an axis of {size} elements by steps of {stride}; expected steps of 1 or more")
    count = sizes[axis]
    if stride > 1:
        adjoint, count = _apart(b, adjoint, sizes, axis, stride), count * stride
    after = size - first - count
    parts = [adjoint]
    for at, missing in ((0, first), (2, after if stride == 1 else tvm.tirx.max(after, 0))):
        if not _same(missing, 0):
            shape = relax.ShapeExpr([*sizes[:axis], missing, *sizes[axis + 1 :]])
            parts.insert(at, op.zeros(shape, dtype_of(b.result)))
    whole = op.concat(parts, axis)
    return whole if stride == 1 else op.strided_slice(whole, [axis], [0], [size], assume_inbound=True)


def _same(left: object, right: object) -> bool:
    return tvm.sym.Analyzer().can_prove_equal(left, right)


def _apart(b: Backward, adjoint: relax.Expr, sizes: list, axis: int, stride: int) -> relax.Expr:
    """`stride - 1` zeros after every element of one axis."""
    column = [*sizes[: axis + 1], 1, *sizes[axis + 1 :]]
    widths = [0] * (2 * len(column))
    widths[2 * axis + 3] = stride - 1
    padded = op.nn.pad(op.reshape(adjoint, relax.ShapeExpr(column)), widths)
    return b.emit(op.reshape(padded, relax.ShapeExpr([*sizes[:axis], sizes[axis] * stride, *sizes[axis + 1 :]])))


def _scatter_elements(b: Backward) -> list[Adjoint]:
    _, indices, updates = b.call.args
    axis, reduction = int(b.call.attrs.axis), str(b.call.attrs.reduction)
    of_data = b.adjoint
    if reduction in ("max", "min"):
        return _scatter_extremes(b, indices, updates, axis)
    if reduction == "update":
        of_data = op.scatter_elements(b.adjoint, indices, zeros_like(updates), axis, "update")
    elif reduction != "add":
        raise GradientError(f"reduction={reduction!r}; expected 'update', 'add', 'max' or 'min'")
    return [of_data, None, op.gather_elements(b.adjoint, indices, axis)]


def _scatter_extremes(b: Backward, indices: relax.Expr, updates: relax.Expr, axis: int) -> list[Adjoint]:
    """What ties for a maximum, in the data and in what was written there, shares its adjoint equally."""
    x, dtype = b.call.args[0], dtype_of(b.result)
    kept = b.emit(op.astype(op.equal(x, b.result), dtype))
    written = b.emit(op.astype(op.equal(updates, op.gather_elements(b.result, indices, axis)), dtype))
    share = b.emit(op.divide(b.adjoint, op.scatter_elements(kept, indices, written, axis, "add")))
    return [kept * share, None, written * op.gather_elements(share, indices, axis)]


def _scatter_nd(b: Backward) -> list[Adjoint]:
    _, indices, updates = b.call.args
    reduction = str(b.call.attrs.reduction)
    of_data = b.adjoint
    if reduction == "update":
        of_data = op.scatter_nd(b.adjoint, indices, zeros_like(updates), "update")
    elif reduction != "add":
        raise GradientError(f"reduction={reduction!r}; expected 'update' or 'add'")
    return [of_data, None, op.gather_nd(b.adjoint, indices)]


def _index_put(b: Backward) -> list[Adjoint]:
    _, indices, values = b.call.args
    of_data = b.adjoint
    if not bool(b.call.attrs.accumulate):
        of_data = op.index_put(b.adjoint, indices, zeros_like(values))
    of_values = unbroadcast(b, op.index_tensor(b.adjoint, indices), values) if b.needs[2] else None
    return [of_data, None, of_values]


def _index_copy(b: Backward) -> list[Adjoint]:
    _, numbers, source = b.call.args
    axis = int(b.call.attrs.axis)
    of_data = own.index_copy(b.adjoint, numbers, zeros_like(source), axis=axis)
    return [of_data, None, op.take(b.adjoint, numbers, axis, "wrap")]


def _slice_scatter(b: Backward) -> list[Adjoint]:
    _, source, *bounds = b.call.args
    axis = int(b.call.attrs.axis)
    first, last, stride = (_number(bound) for bound in bounds)
    return [
        op.slice_scatter(b.adjoint, zeros_like(source), *bounds, axis),
        op.strided_slice(b.adjoint, [axis], [first], [last], [stride]),
        *[None] * len(bounds),
    ]


def _number(expr: relax.Expr) -> int:
    return int(getattr(expr, "value", expr))


def _where(b: Backward) -> list[Adjoint]:
    condition, first, second = b.call.args
    zero = number(0.0, b.result)
    return [
        None,
        unbroadcast(b, op.where(condition, b.adjoint, zero), first) if b.needs[1] else None,
        unbroadcast(b, op.where(condition, zero, b.adjoint), second) if b.needs[2] else None,
    ]


def _sort(b: Backward) -> list[Adjoint]:
    """Each element's adjoint goes where the element came from."""
    x, attrs = b.call.args[0], b.call.attrs
    axis = int(attrs.axis) % rank(x)
    places = op.argsort(x, axis, bool(attrs.descending), "int64")
    return [op.scatter_elements(zeros_like(x), places, b.adjoint, axis, "add")]


def _topk(b: Backward) -> list[Adjoint]:
    x, axis = b.call.args[0], int(b.call.attrs.axis)
    if str(b.call.attrs.ret_type) != "both":
        raise GradientError(f"ret_type={str(b.call.attrs.ret_type)!r}; expected 'both': the indices say where it goes")
    places = b.emit(relax.TupleGetItem(b.result, 1))
    return [op.scatter_elements(zeros_like(x), places, b.adjoint[0], axis % rank(x), "add")]


_PLACES = "indices and ranks do not change with small changes"

RULES = (
    gradient("relax.take", _take, why="the sum of the adjoints of every use of an element"),
    gradient("relax.gather_elements", _gather_elements, why="the sum of the adjoints of every use of an element"),
    gradient("relax.gather_nd", _gather_nd, why="the sum of the adjoints of every use of an element"),
    gradient("relax.index_tensor", _index_tensor, why="the sum of the adjoints of every use of an element"),
    gradient("relax.strided_slice", _strided_slice, why="the adjoint with zeros for what was not taken"),
    not_differentiable("relax.dynamic_strided_slice", why="its bounds are known at run time only; use strided_slice"),
    gradient(
        "relax.scatter_elements",
        _scatter_elements,
        why="what was written, and what was not overwritten; what is the maximum or minimum",
    ),
    gradient("relax.scatter_nd", _scatter_nd, why="what was written, and what was not overwritten"),
    gradient("relax.index_put", _index_put, why="what was written, and what was not overwritten"),
    gradient("relax.nn.index_copy", _index_copy, why="what was written, and what was not overwritten"),
    gradient("relax.slice_scatter", _slice_scatter, why="the slice, and what is around it"),
    gradient("relax.where", _where, why="the adjoint where the branch was chosen, else zero"),
    gradient("relax.sort", _sort, why="the inverse permutation"),
    gradient("relax.topk", _topk, why="the adjoints of the chosen elements, at their places"),
    zero_gradient("relax.argsort", why=_PLACES),
    zero_gradient("relax.argmax", why=_PLACES),
    zero_gradient("relax.argmin", why=_PLACES),
    zero_gradient("relax.nonzero", why=_PLACES),
    zero_gradient("relax.bucketize", why=_PLACES),
    not_differentiable("relax.unique", why="equal elements are one: whose the adjoint is, nothing says"),
)
