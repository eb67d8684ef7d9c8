"""Data movement: the adjoint of a move is the move back, and of a repetition a sum."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax
from tvm.relax import op

from autocast.errors import GradientError
from autocast.training.gradients.registry import (
    Adjoint,
    Backward,
    GradientRule,
    gradient,
    not_differentiable,
    zero_gradient,
)
from autocast.training.gradients.shapes import known_shape, rank, reshaped, unbroadcast


def _reshape(b: Backward) -> list[Adjoint]:
    return [reshaped(b.adjoint, b.call.args[0]), *[None] * (len(b.call.args) - 1)]


def _permute_dims(b: Backward) -> list[Adjoint]:
    count = rank(b.result)
    axes = list(range(count))[::-1] if b.call.attrs.axes is None else [int(i) % count for i in b.call.attrs.axes]
    return [op.permute_dims(b.adjoint, sorted(range(count), key=lambda i: axes[i]))]


def _broadcast_to(b: Backward) -> list[Adjoint]:
    return [unbroadcast(b, b.adjoint, b.call.args[0]), None]


def _repeat(b: Backward) -> list[Adjoint]:
    x, times = b.call.args[0], int(b.call.attrs.repeats)
    shape = known_shape(x)
    if b.call.attrs.axis is None:
        flat = op.reshape(b.adjoint, relax.ShapeExpr([*shape, times]))
        return [op.sum(flat, len(shape))]
    axis = int(b.call.attrs.axis) % len(shape)
    parts = op.reshape(b.adjoint, relax.ShapeExpr([*shape[: axis + 1], times, *shape[axis + 1 :]]))
    return [op.sum(parts, axis + 1)]


def _tile(b: Backward) -> list[Adjoint]:
    x = b.call.args[0]
    shape, times = list(known_shape(x)), [int(i) for i in b.call.attrs.repeats]
    count = max(len(shape), len(times))
    shape, times = [1] * (count - len(shape)) + shape, [1] * (count - len(times)) + times
    parts = op.reshape(b.adjoint, relax.ShapeExpr([size for pair in zip(times, shape, strict=True) for size in pair]))
    return [reshaped(op.sum(parts, list(range(0, 2 * count, 2))), x)]


def _split(b: Backward) -> list[Adjoint]:
    """The parts side by side again, zeros for those that have no adjoint."""
    types = b.result.ty.fields
    parts = [
        part if part is not None else op.zeros(ty.shape, str(ty.dtype))
        for part, ty in zip(b.adjoint, types, strict=True)
    ]
    return [op.concat(parts, int(b.call.attrs.axis))]


def slice_of(expr: relax.Expr, axis: int, begin: object, end: object) -> relax.Expr:
    """Elements begin to end of one axis, all of which are there."""
    return op.strided_slice(expr, [axis], [begin], [end], assume_inbound=True)


def _fields(expr: relax.Expr) -> list[relax.Expr]:
    """The tensors of a tuple, whose types are enough to know."""
    if isinstance(expr, relax.Tuple):
        return list(expr.fields)
    return [relax.Var("field", ty) for ty in expr.ty.fields]


def _concat(b: Backward) -> list[Adjoint]:
    axis = int(b.call.attrs.axis or 0) % rank(b.result)
    parts: list[Adjoint] = []
    end: object = 0
    for field in _fields(b.call.args[0]):
        begin, end = end, end + known_shape(field)[axis]
        parts.append(slice_of(b.adjoint, axis, begin, end))
    return [tuple(parts)]


def _stack(b: Backward) -> list[Adjoint]:
    axis = int(b.call.attrs.axis or 0) % rank(b.result)
    fields = _fields(b.call.args[0])
    return [tuple(op.squeeze(slice_of(b.adjoint, axis, i, i + 1), [axis]) for i in range(len(fields)))]


def _meshgrid(b: Backward) -> list[Adjoint]:
    if str(b.call.attrs.indexing) != "ij":
        raise GradientError(f"indexing={str(b.call.attrs.indexing)!r}; expected 'ij': TVM mistypes the others")
    places = range(len(b.adjoint))
    parts = [
        None if part is None else op.sum(part, [i for i in places if i != place])
        for place, part in enumerate(b.adjoint)
    ]
    return [tuple(parts)]


def padding_of(call: relax.Call) -> list[tuple[int, int]]:
    """(before, after) of each axis of a pad."""
    widths = [int(i) for i in call.attrs.pad_width]
    return list(zip(widths[::2], widths[1::2], strict=True))


def _pad(b: Backward) -> list[Adjoint]:
    if str(b.call.attrs.pad_mode) != "constant":
        raise GradientError(f"pad_mode={str(b.call.attrs.pad_mode)!r}; expected 'constant'")
    x, padding = b.call.args[0], padding_of(b.call)
    axes = [axis for axis, widths in enumerate(padding) if max(widths) > 0]
    begin = [max(padding[axis][0], 0) for axis in axes]
    kept = [known_shape(x)[axis] + sum(min(width, 0) for width in padding[axis]) for axis in axes]
    end = [first + size for first, size in zip(begin, kept, strict=True)]
    adjoint = op.strided_slice(b.adjoint, axes, begin, end, assume_inbound=True) if axes else b.adjoint
    cut = [max(-width, 0) for widths in padding for width in widths]
    return [op.nn.pad(adjoint, cut) if any(cut) else adjoint, *[None] * (len(b.call.args) - 1)]


def _pixel_shuffle(b: Backward) -> list[Adjoint]:
    """(N, C, H r, W r) to (N, C r², H, W)."""
    x, factor = b.call.args[0], int(b.call.attrs.upscale_factor)
    *batch, channels, height, width = known_shape(x)
    count = len(batch)
    parts = [*batch, channels // (factor * factor), height, factor, width, factor]
    order = [*range(count + 1), count + 2, count + 4, count + 1, count + 3]
    return [reshaped(op.permute_dims(op.reshape(b.adjoint, relax.ShapeExpr(parts)), order), x)]


def _layout_transform(b: Backward) -> list[Adjoint]:
    index_map, shape = b.call.attrs.index_map, known_shape(b.call.args[0])
    if b.call.attrs.pad_value is not None:
        raise GradientError("a layout_transform that pads; expected one that only moves")
    return [op.layout_transform(b.adjoint, index_map.inverse(shape))]


def _reverse_sequence(b: Backward) -> list[Adjoint]:
    attrs = b.call.attrs
    return [op.reverse_sequence(b.adjoint, b.call.args[1], int(attrs.seq_axis), int(attrs.batch_axis)), None]


def _same_triangle(triangle: Callable[..., relax.Expr]) -> GradientRule:
    return lambda b: [triangle(b.adjoint, *b.call.args[1:]), *[None] * (len(b.call.args) - 1)]


_BACK = "the shape that it had"
_REPEATED = "the sum over what was repeated"

RULES = (
    gradient("relax.reshape", _reshape, why=_BACK),
    gradient("relax.flatten", _reshape, why=_BACK),
    gradient("relax.nn.batch_flatten", _reshape, why=_BACK),
    gradient("relax.squeeze", _reshape, why=_BACK),
    gradient("relax.expand_dims", _reshape, why=_BACK),
    gradient("relax.permute_dims", _permute_dims, why="the inverse permutation"),
    gradient("relax.layout_transform", _layout_transform, why="the inverse map of indices"),
    gradient("relax.nn.pixel_shuffle", _pixel_shuffle, why="the inverse permutation"),
    gradient("relax.broadcast_to", _broadcast_to, why=_REPEATED),
    gradient("relax.repeat", _repeat, why=_REPEATED),
    gradient("relax.tile", _tile, why=_REPEATED),
    gradient("relax.meshgrid", _meshgrid, why=_REPEATED),
    gradient("relax.flip", lambda b: [op.flip(b.adjoint, int(b.call.attrs.axis))], why="its own inverse"),
    gradient("relax.reverse_sequence", _reverse_sequence, why="its own inverse"),
    gradient("relax.split", _split, why="the adjoints of the parts, joined"),
    gradient("relax.concat", _concat, why="the slices that the parts became"),
    gradient("relax.stack", _stack, why="the slices that the parts became"),
    gradient("relax.nn.pad", _pad, why="the slice that is not border, zeros where it cuts"),
    gradient("relax.tril", _same_triangle(op.tril), why="the same triangle"),
    gradient("relax.triu", _same_triangle(op.triu), why="the same triangle"),
    gradient("relax.hint_on_device", lambda b: [b.adjoint], why="the identity"),
    not_differentiable("relax.to_vdevice", why="a training step runs on one device"),
    zero_gradient("relax.shape_of", why="a shape does not depend on values"),
    zero_gradient("relax.size", why="a shape does not depend on values"),
)
