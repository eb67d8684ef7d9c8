"""Relax operators that only move data, as strided views of what they read and pieces of what they write."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax, tirx

from autocast.ir import is_constant, op_name, same_shape
from autocast.kernels.graph.canonicalize import permutation
from autocast.kernels.graph.rewriting import dims, storage
from autocast.kernels.layout.kernel import Axis, Piece
from autocast.kernels.layout.sizes import Size, dimension
from autocast.kernels.layout.squares import FLOATS
from autocast.kernels.vector.expression import Dim


class Declined(Exception):
    """Why an operator is not moved by a kernel of ours."""


class Names:
    """Names for the run-time dimensions of one kernel: d0, d1 and so on, in the order in which they are met."""

    def __init__(self) -> None:
        self.known: list[tirx.Expr] = []

    def dim(self, dim: Any) -> Dim:
        """A dimension of a Relax shape, as kernels spell it."""
        if isinstance(dim, int | tirx.IntImm):
            return int(dim)
        for number, known in enumerate(self.known):
            if same_shape((known,), (dim,)):
                return f"d{number}"
        self.known.append(dim)
        return f"d{len(self.known) - 1}"

    def sizes(self, shape: Sequence[Any]) -> tuple[Size, ...]:
        """The dimensions of a Relax shape."""
        return tuple(dimension(self.dim(dim)) for dim in shape)


@dataclass(frozen=True)
class View:
    """A tensor, looked at with other extents and strides (both in elements), from element `start` on.

    `dtype` is what its elements are converted to when they are read.
    """

    tensor: relax.Expr
    extents: tuple[Size, ...]
    strides: tuple[Size, ...]
    start: Size
    dtype: str


def strides_of(extents: Sequence[Size]) -> tuple[Size, ...]:
    """Elements between neighbours along each axis of a compact tensor."""
    strides: list[Size] = []
    below: Size = 1
    for extent in reversed(extents):
        strides.append(below)
        below = below * extent
    return tuple(reversed(strides))


def whole(tensor: relax.Expr, names: Names) -> View:
    """A tensor as it is."""
    extents = names.sizes(dims(tensor))
    return View(tensor, extents, strides_of(extents), 0, storage(tensor))


# ---- operators whose result is a view of their operand ----


def _permute_dims(view: View, call: relax.Call, names: Names) -> View:
    axes = permutation(call)
    return replace(view, extents=tuple(view.extents[i] for i in axes), strides=tuple(view.strides[i] for i in axes))


def _broadcast_to(view: View, call: relax.Call, names: Names) -> View:
    extents = names.sizes(dims(call))
    new = len(extents) - len(view.extents)
    strides = tuple(
        0 if old == 1 else stride
        for old, stride in zip((1,) * new + view.extents, (0,) * new + view.strides, strict=True)
    )
    return replace(view, extents=extents, strides=strides)


def _strided_slice(view: View, call: relax.Call, names: Names) -> View:
    numbers = [
        [_integer(field) for field in argument.fields] for argument in (call.args[1], call.args[2], *call.args[4:])
    ]
    axes, begins = numbers[:2]
    steps = numbers[2] if len(numbers) > 2 else [1] * len(axes)
    extents, strides, start = names.sizes(dims(call)), list(view.strides), view.start
    for axis, begin, step in zip(axes, begins, steps, strict=True):
        axis %= len(extents)
        first: Size = begin
        if begin < 0:
            first = view.extents[axis] + begin
        extent = view.extents[axis]
        if isinstance(first, int) and isinstance(extent, int):
            first = max(0, min(first, extent - (step < 0)))
        elif step < 0:
            raise Declined("it goes backwards along a run-time dimension")
        start = start + first * strides[axis]
        strides[axis] = strides[axis] * step
    return replace(view, extents=extents, strides=tuple(strides), start=start)


def _flip(view: View, call: relax.Call, names: Names) -> View:
    axis = int(call.attrs.axis) % len(view.extents)
    strides = tuple(stride * -1 if i == axis else stride for i, stride in enumerate(view.strides))
    return replace(view, strides=strides, start=view.start + (view.extents[axis] + -1) * view.strides[axis])


def _astype(view: View, call: relax.Call, names: Names) -> View:
    dtype = storage(call)
    if dtype not in FLOATS or view.dtype not in FLOATS:
        raise Declined(f"it converts {view.dtype} to {dtype}")
    if view.dtype != storage(view.tensor):
        raise Declined("it converts twice")
    return replace(view, dtype=dtype)


def _reshape(view: View, call: relax.Call, names: Names) -> View:
    """Runs of axes that are contiguous in memory are split anew; other reshapes are no views."""
    old = [(extent, stride) for extent, stride in zip(view.extents, view.strides, strict=True) if extent != 1]
    new = names.sizes(dims(call))
    strides: list[Size] = []
    place = 0
    while len(strides) < len(new):
        if new[len(strides)] == 1:
            strides.append(0)
            continue
        if place == len(old):
            raise Declined("it reshapes what is not contiguous")
        extent, stride = old[place]
        place += 1
        run = [new[len(strides)]]
        while (length := math.prod(run)) != extent:
            if not isinstance(length, int) or not isinstance(extent, int):
                raise Declined("it reshapes run-time dimensions")
            if length < extent:
                run.append(new[len(strides) + len(run)])
                continue
            if old[place][0] * old[place][1] != stride:
                raise Declined("it reshapes what is not contiguous")
            extent, stride = extent * old[place][0], old[place][1]
            place += 1
        strides += [step * stride for step in strides_of(run)]
    return replace(view, extents=new, strides=tuple(strides))


VIEWS: dict[str, Callable[[View, relax.Call, Names], View]] = {
    "relax.permute_dims": _permute_dims,
    "relax.broadcast_to": _broadcast_to,
    "relax.strided_slice": _strided_slice,
    "relax.flip": _flip,
    "relax.astype": _astype,
    "relax.reshape": _reshape,
}


def part_of_split(view: View, split: relax.Call, index: int, names: Names) -> View:
    """The `index`-th result of a split."""
    axis = int(split.attrs.axis) % len(view.extents)
    shapes = [names.sizes(field.shape.values) for field in split.ty.fields]
    begin = sum((shape[axis] for shape in shapes[:index]), start=0)
    return replace(view, extents=shapes[index], start=view.start + begin * view.strides[axis])


# ---- operators whose result consists of pieces ----

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


def pattern(value: Any, dtype: str) -> int:
    """The bits of a number, as a signed integer."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return int(np.asarray(value).astype(kind).view(f"int{8 * kind.itemsize}"))


def _concat(views: list[View], call: relax.Call, writes: tuple[Size, ...], names: Names) -> list[Part]:
    axis = int(call.attrs.axis or 0) % len(writes)
    parts: list[Part] = []
    start: Size = 0
    for view in views:
        parts.append(copied(view, writes, start * writes[axis]))
        start = start + view.extents[axis]
    return parts


def _stack(views: list[View], call: relax.Call, writes: tuple[Size, ...], names: Names) -> list[Part]:
    axis = int(call.attrs.axis or 0) % len(writes)
    others = writes[:axis] + writes[axis + 1 :]
    return [copied(view, others, writes[axis] * i) for i, view in enumerate(views)]


def _tile(views: list[View], call: relax.Call, writes: tuple[Size, ...], names: Names) -> list[Part]:
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


def _repeat(views: list[View], call: relax.Call, writes: tuple[Size, ...], names: Names) -> list[Part]:
    (view,) = views
    count = int(call.attrs.repeats)
    if call.attrs.axis is None:
        view = View(view.tensor, (math.prod(view.extents, start=1),), (1,), view.start, view.dtype)
    axis = int(call.attrs.axis or 0) % len(view.extents)
    extents = (*view.extents[: axis + 1], count, *view.extents[axis + 1 :])
    strides = (*view.strides[: axis + 1], 0, *view.strides[axis + 1 :])
    steps = (*writes[:axis], writes[axis] * count, writes[axis], *writes[axis + 1 :])
    return [copied(replace(view, extents=extents, strides=strides), steps)]


def _pad(views: list[View], call: relax.Call, writes: tuple[Size, ...], names: Names) -> list[Part]:
    (view,) = views
    widths = [int(width) for width in call.attrs.pad_width]
    if str(call.attrs.pad_mode) != "constant" or min(widths) < 0:
        raise Declined(f"its mode is {call.attrs.pad_mode}")
    before, after = widths[::2], widths[1::2]
    bits = pattern(float(call.attrs.pad_value), storage(call))
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


def _full(views: list[View], call: relax.Call, writes: tuple[Size, ...], names: Names) -> list[Part]:
    value = _FILLS.get(call.op.name)
    if value is None:
        operand = call.args[1]
        if not is_constant(operand) or operand.value.numpy().size != 1:
            raise Declined("what fills it is not known")
        value = operand.value.numpy().reshape(())
    return [filled(names.sizes(dims(call)), writes, 0, pattern(value, storage(call)))]


_FILLS = {"relax.zeros": 0, "relax.zeros_like": 0, "relax.ones": 1, "relax.ones_like": 1}

JOINS: dict[str, Callable[[list[View], relax.Call, tuple[Size, ...], Names], list[Part]]] = {
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
        return list(value.args[0].fields) if isinstance(value.args[0], relax.Tuple) else []
    if name in JOINS:
        return [] if JOINS[name] is _full else [value.args[0]]
    return [value.args[0]]


def _integer(expr: relax.Expr) -> int:
    if not isinstance(expr, int | tirx.IntImm):
        raise Declined("it is cut at places that are computed")
    return int(expr)
