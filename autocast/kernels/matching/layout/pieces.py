"""Relax operators whose result consists of pieces: copies of views, and parts that are filled with a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax

from autocast.ir import dims, is_constant, op_name, storage
from autocast.kernels.explain import Declined
from autocast.kernels.matching.layout.views import View
from autocast.kernels.specs.layout import Axis, Piece
from autocast.kernels.specs.sizes import DimensionNames, Size, strides_of

#: A piece that reads a view, or one that is filled, without what it reads.
Part = tuple[View | None, Piece]


def copied(view: View, writes: Sequence[Size], start: Size = 0) -> Part:
    """The part of a result, of strides `writes`, that is a view."""
    axes = tuple(Axis(*axis) for axis in zip(view.extents, view.strides, writes, strict=True))
    return view, Piece(None, axes, view.start, start)


def filled(extents: Sequence[Size], writes: Sequence[Size], start: Size, bits: int) -> Part:
    """The part of a result that is filled with one number."""
    axes = tuple(Axis(extent, 0, write) for extent, write in zip(extents, writes, strict=True))
    return None, Piece(None, axes, 0, start, bits)


def bit_pattern(value: Any, dtype: str) -> int:
    """The bits of a number, as a signed integer."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return int(np.asarray(value).astype(kind).view(f"int{8 * kind.itemsize}"))


def _concat(views: list[View], call: relax.Call, writes: tuple[Size, ...], names: DimensionNames) -> list[Part]:
    axis = int(call.attrs.axis or 0) % len(writes)
    parts: list[Part] = []
    start: Size = 0
    for view in views:
        parts.append(copied(view, writes, start * writes[axis]))
        start = start + view.extents[axis]
    return parts


def _stack(views: list[View], call: relax.Call, writes: tuple[Size, ...], names: DimensionNames) -> list[Part]:
    axis = int(call.attrs.axis or 0) % len(writes)
    others = writes[:axis] + writes[axis + 1 :]
    return [copied(view, others, writes[axis] * i) for i, view in enumerate(views)]


def _tile(views: list[View], call: relax.Call, writes: tuple[Size, ...], names: DimensionNames) -> list[Part]:
    (view,) = views
    repeats = [int(count) for count in call.attrs.repeats]
    rank = len(writes)
    counts = [1] * (rank - len(repeats)) + repeats
    missing = rank - len(view.extents)
    inner = (1,) * missing + view.extents
    extents = tuple(extent for pair in zip(counts, inner, strict=True) for extent in pair)
    strides = tuple(stride for own in (0,) * missing + view.strides for stride in (0, own))
    steps = tuple(step for write, extent in zip(writes, inner, strict=True) for step in (write * extent, write))
    return [copied(replace(view, extents=extents, strides=strides), steps)]


def _repeat(views: list[View], call: relax.Call, writes: tuple[Size, ...], names: DimensionNames) -> list[Part]:
    (view,) = views
    count = int(call.attrs.repeats)
    # Without an axis: each element, in the order of the view, whatever order they are stored in.
    flat = call.attrs.axis is None
    axis = len(view.extents) - 1 if flat else int(call.attrs.axis) % len(view.extents)
    extents = (*view.extents[: axis + 1], count, *view.extents[axis + 1 :])
    strides = (*view.strides[: axis + 1], 0, *view.strides[axis + 1 :])
    if flat:
        steps = (*(stride * count * writes[0] for stride in strides_of(view.extents)), writes[0])
    else:
        steps = (*writes[:axis], writes[axis] * count, writes[axis], *writes[axis + 1 :])
    return [copied(replace(view, extents=extents, strides=strides), steps)]


def _pad(views: list[View], call: relax.Call, writes: tuple[Size, ...], names: DimensionNames) -> list[Part]:
    (view,) = views
    widths = [int(width) for width in call.attrs.pad_width]
    if str(call.attrs.pad_mode) != "constant" or min(widths) < 0:
        raise Declined(f"its mode is {call.attrs.pad_mode}")
    before, after = widths[::2], widths[1::2]
    bits = bit_pattern(float(call.attrs.pad_value), storage(call))
    outer = names.sizes(dims(call))
    parts: list[Part] = []
    corner: Size = 0
    for axis, write in enumerate(writes):
        # Slabs at either end of this axis: inside the frame along earlier axes, the whole width along later ones.
        extents: list[Size] = [*view.extents[:axis], 0, *outer[axis + 1 :]]
        for width, place in ((before[axis], 0), (after[axis], view.extents[axis] + before[axis])):
            if width:
                extents[axis] = width
                parts.append(filled(extents, writes, corner + place * write, bits))
        corner = corner + before[axis] * write
    return [copied(view, writes, corner), *parts]


def _full(views: list[View], call: relax.Call, writes: tuple[Size, ...], names: DimensionNames) -> list[Part]:
    value = _FILLS.get(call.op.name)
    if value is None:
        operand = call.args[1]
        if not is_constant(operand) or operand.value.numpy().size != 1:
            raise Declined("what fills it is not known")
        value = operand.value.numpy().reshape(())
    return [filled(names.sizes(dims(call)), writes, 0, bit_pattern(value, storage(call)))]


_FILLS = {"relax.zeros": 0, "relax.zeros_like": 0, "relax.ones": 1, "relax.ones_like": 1}

JOINS: dict[str, Callable[[list[View], relax.Call, tuple[Size, ...], DimensionNames], list[Part]]] = {
    "relax.concat": _concat,
    "relax.stack": _stack,
    "relax.tile": _tile,
    "relax.repeat": _repeat,
    "relax.nn.pad": _pad,
    **dict.fromkeys((*_FILLS, "relax.full", "relax.full_like"), _full),
}


def operands(value: relax.Expr) -> list[relax.Expr]:
    """The tensors that an operator of `JOINS` or `VIEWS` moves."""
    name = op_name(value)
    if name in ("relax.concat", "relax.stack"):
        return list(value.args[0].fields)
    if name in JOINS:
        return [] if JOINS[name] is _full else [value.args[0]]
    return [value.args[0]]
