"""Where the matrices of attention lie in memory: views through permutations, reshapes, cuts and repetitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from autocast.ir import dims, is_op, op_name, permutation
from autocast.kernels.explain import Declined
from autocast.kernels.specs.sizes import DimensionNames, Size, ratio, strides_of


@dataclass(frozen=True)
class Atom:
    """A part of an axis: `extent` elements, `stride` elements apart."""

    extent: Size
    stride: Size


#: An axis whose elements are those of several atoms, the last one fastest; none for an axis of one element.
Axis = tuple[Atom, ...]


@dataclass(frozen=True)
class Operand:
    """A tensor looked at with other axes, from element `offset` on."""

    tensor: relax.Expr
    axes: tuple[Axis, ...]
    offset: Size = 0


def whole(tensor: relax.Expr, names: DimensionNames) -> Operand:
    """A tensor as it is."""
    extents = names.sizes(dims(tensor))
    return Operand(tensor, tuple(_axis(*atom) for atom in zip(extents, strides_of(extents), strict=True)))


def _axis(extent: Size, stride: Size) -> Axis:
    return () if extent == 1 else (Atom(extent, stride),)


def merged(atoms: Sequence[Atom]) -> list[Atom]:
    """The same elements as the fewest atoms."""
    result: list[Atom] = []
    for atom in atoms:
        if result and result[-1].stride == atom.extent * atom.stride:
            result[-1] = Atom(result[-1].extent * atom.extent, atom.stride)
        else:
            result.append(atom)
    return result


def reshaped(operand: Operand, extents: Sequence[Size]) -> Operand:
    """The operand with axes of other extents; raises Declined where those are no strides."""
    rest = merged([atom for axis in operand.axes for atom in axis])
    axes: list[Axis] = []
    for extent in extents:
        axis: list[Atom] = []
        while extent != 1:
            if not rest:
                raise Declined("a reshape of run-time dimensions")
            atom = rest.pop(0)
            if (missing := ratio(extent, atom.extent)) is not None:
                axis.append(atom)
                extent = missing
            elif (inner := ratio(atom.extent, extent)) is not None:
                axis.append(Atom(extent, atom.stride * inner))
                rest.insert(0, Atom(inner, atom.stride))
                extent = 1
            else:
                raise Declined("a reshape across strides")
        axes.append(tuple(axis))
    return replace(operand, axes=tuple(axes))


def _permute_dims(operand: Operand, call: relax.Call, names: DimensionNames) -> Operand:
    return replace(operand, axes=tuple(operand.axes[axis] for axis in permutation(call)))


def _reshape(operand: Operand, call: relax.Call, names: DimensionNames) -> Operand:
    return reshaped(operand, names.sizes(dims(call)))


def _broadcast_to(operand: Operand, call: relax.Call, names: DimensionNames) -> Operand:
    return broadcast(operand, names.sizes(dims(call)))


def _repeat(operand: Operand, call: relax.Call, names: DimensionNames) -> Operand:
    if call.attrs.axis is None:
        raise Declined("a repetition of all elements")
    axes = list(operand.axes)
    axes[int(call.attrs.axis)] += (Atom(int(call.attrs.repeats), 0),)
    return replace(operand, axes=tuple(axes))


def _strided_slice(operand: Operand, call: relax.Call, names: DimensionNames) -> Operand:
    fields = [[int(field.value) for field in argument.fields] for argument in (call.args[1], call.args[2])]
    if len(call.args) > 4 and any(int(field.value) != 1 for field in call.args[4].fields):
        raise Declined("a slice with steps")
    shape = dims(call)
    for axis, begin in zip(*fields, strict=True):
        operand = _cut(operand, axis % len(shape), begin, shape[axis], names)
    return operand


def _cut(operand: Operand, axis: int, begin: int, extent: Any, names: DimensionNames) -> Operand:
    atoms = merged(operand.axes[axis])
    if len(atoms) != 1 or begin < 0:
        raise Declined("a slice of an axis without one stride, or from its end")
    axes = list(operand.axes)
    (cut,) = names.sizes((extent,))
    axes[axis] = _axis(cut, atoms[0].stride)
    return replace(operand, axes=tuple(axes), offset=operand.offset + atoms[0].stride * begin)


def broadcast(operand: Operand, extents: Sequence[Size]) -> Operand:
    """The operand repeated to axes of `extents`, as elementwise operators do."""
    axes: tuple[Axis, ...] = ((),) * (len(extents) - len(operand.axes)) + operand.axes
    return replace(operand, axes=tuple(axis or _axis(extent, 0) for axis, extent in zip(axes, extents, strict=True)))


_VIEWS: dict[str, Callable[[Operand, relax.Call, DimensionNames], Operand]] = {
    "relax.permute_dims": _permute_dims,
    "relax.reshape": _reshape,
    "relax.broadcast_to": _broadcast_to,
    "relax.repeat": _repeat,
    "relax.strided_slice": _strided_slice,
}


def look_through(expr: relax.Expr, bound: dict[relax.Var, relax.Expr], names: DimensionNames) -> Operand:
    """`expr` as a view of the tensor from which it is made by moving data only."""
    value: Any = bound.get(expr) if isinstance(expr, relax.Var) else None
    try:
        if (view := _VIEWS.get(op_name(value) or "")) is not None:
            return view(look_through(value.args[0], bound, names), value, names)
        if isinstance(value, relax.TupleGetItem):
            split: Any = bound.get(value.tuple_value)
            if is_op(split, "relax.split"):
                axis = int(split.attrs.axis) % len(dims(expr))
                lengths = [field.shape.values[axis] for field in split.ty.fields[: value.index]]
                operand = look_through(split.args[0], bound, names)
                return _cut(operand, axis, sum(int(length) for length in lengths), dims(expr)[axis], names)
    except (Declined, AttributeError, TypeError):  # a slice from a run-time index, say: it is read as it is stored
        pass
    return whole(expr, names)


def written_through(result: relax.Var, steps: Sequence[relax.Call], shape: tuple, names: DimensionNames) -> Operand:
    """A tensor of `shape` as a view of `result`, which `steps` (permutations and reshapes) make of it."""
    operand = whole(result, names)
    for index, call in reversed(list(enumerate(steps))):
        before = dims(steps[index - 1]) if index else shape
        if is_op(call, "relax.permute_dims"):
            order = permutation(call)
            operand = replace(operand, axes=tuple(operand.axes[order.index(axis)] for axis in range(len(order))))
        else:
            operand = reshaped(operand, names.sizes(before))
    return operand


def aligned(leading: Sequence[Sequence[Atom]]) -> tuple[tuple[Size, ...], list[tuple[Size, ...]]]:
    """Common extents of the leading axes of several operands, and the strides of each operand along them."""
    rests = [merged(atoms) for atoms in leading]
    extents: list[Size] = []
    strides: list[list[Size]] = [[] for _ in rests]
    while any(rests):
        if not all(rests):
            raise Declined("leading axes of different extents")
        last = [rest[-1].extent for rest in rests]
        extent = next((e for e in last if all(ratio(other, e) is not None for other in last)), None)
        if extent is None:
            raise Declined("leading axes that are cut differently")
        extents.insert(0, extent)
        for rest, own in zip(rests, strides, strict=True):
            atom = rest.pop()
            own.insert(0, atom.stride)
            outer = ratio(atom.extent, extent)
            if outer is not None and outer != 1:
                rest.append(Atom(outer, atom.stride * extent))
    return tuple(extents), [tuple(own) for own in strides]


def one_stride(axis: Axis) -> Size:
    """The distance between neighbours along an axis, 0 where it has one element."""
    atoms = merged(axis)
    if len(atoms) > 1:
        raise Declined("rows without one stride")
    return atoms[0].stride if atoms else 0


def count(axis: Axis) -> Size:
    """The number of elements along an axis."""
    return math.prod((atom.extent for atom in axis), start=1)
