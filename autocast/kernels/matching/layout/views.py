"""Relax operators whose result is their operand, looked at with other extents and strides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import relax, tirx

from autocast.ir import FLOATS, dims, permutation, storage
from autocast.kernels.explain import Declined
from autocast.kernels.specs.sizes import DimensionNames, Size, strides_of


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


def whole(tensor: relax.Expr, names: DimensionNames) -> View:
    """A tensor as it is."""
    extents = names.sizes(dims(tensor))
    return View(tensor, extents, strides_of(extents), 0, storage(tensor))


def _permute_dims(view: View, call: relax.Call, names: DimensionNames) -> View:
    axes = permutation(call)
    return replace(view, extents=tuple(view.extents[i] for i in axes), strides=tuple(view.strides[i] for i in axes))


def _broadcast_to(view: View, call: relax.Call, names: DimensionNames) -> View:
    extents = names.sizes(dims(call))
    new = len(extents) - len(view.extents)
    strides = tuple(
        0 if old == 1 else stride
        for old, stride in zip((1,) * new + view.extents, (0,) * new + view.strides, strict=True)
    )
    return replace(view, extents=extents, strides=strides)


def _strided_slice(view: View, call: relax.Call, names: DimensionNames) -> View:
    numbers = [
        [_integer(field) for field in argument.fields] for argument in (call.args[1], call.args[2], *call.args[4:])
    ]
    axes, begins = numbers[:2]
    steps = numbers[2] if len(numbers) > 2 else [1] * len(axes)
    extents, strides, start = names.sizes(dims(call)), list(view.strides), view.start
    for axis, begin, step in zip(axes, begins, steps, strict=True):
        axis %= len(extents)
        extent = view.extents[axis]
        first: Size = begin if begin >= 0 else extent + begin
        if isinstance(first, int) and isinstance(extent, int):
            first = max(0, min(first, extent - (step < 0)))
        elif step < 0:
            raise Declined("it goes backwards along a run-time dimension")
        elif begin < 0 and not call.attrs.assume_inbound:
            raise Declined("it begins before the first element where there are few")
        start = start + first * strides[axis]
        strides[axis] = strides[axis] * step
    return replace(view, extents=extents, strides=tuple(strides), start=start)


def _flip(view: View, call: relax.Call, names: DimensionNames) -> View:
    axis = int(call.attrs.axis) % len(view.extents)
    strides = tuple(stride * -1 if i == axis else stride for i, stride in enumerate(view.strides))
    return replace(view, strides=strides, start=view.start + (view.extents[axis] + -1) * view.strides[axis])


def _astype(view: View, call: relax.Call, names: DimensionNames) -> View:
    dtype = storage(call)
    if dtype not in FLOATS or view.dtype not in FLOATS:
        raise Declined(f"it converts {view.dtype} to {dtype}")
    if view.dtype != storage(view.tensor):
        raise Declined("it converts twice")
    return replace(view, dtype=dtype)


def _reshape(view: View, call: relax.Call, names: DimensionNames) -> View:
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


VIEWS: dict[str, Callable[[View, relax.Call, DimensionNames], View]] = {
    "relax.permute_dims": _permute_dims,
    "relax.broadcast_to": _broadcast_to,
    "relax.strided_slice": _strided_slice,
    "relax.flip": _flip,
    "relax.astype": _astype,
    "relax.reshape": _reshape,
}


def part_of_split(view: View, split: relax.Call, index: int, names: DimensionNames) -> View:
    """The `index`-th result of a split."""
    axis = int(split.attrs.axis) % len(view.extents)
    shapes = [names.sizes(field.shape.values) for field in split.ty.fields]
    begin = sum((shape[axis] for shape in shapes[:index]), start=0)
    return replace(view, extents=shapes[index], start=view.start + begin * view.strides[axis])


def _integer(expr: relax.Expr) -> int:
    if not isinstance(expr, int | tirx.IntImm):
        raise Declined("it is cut at places that are computed")
    return int(expr)
