"""Emits the vectors of a program.

Dimensions that every argument treats alike are merged, so that lines are as long as they can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64, quotient, remainder
from autocast.kernels.specs.program import Dim, Program
from autocast.kernels.targets.cpu.vector.expression import FUNCTIONS
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, flat

#: A function from a column and the number of elements from there on (None: a whole vector) to a float32 vector.
Value: TypeAlias = Callable[[Any, Any], tirx.Expr]


class Sizes:
    """The extents of a kernel's dimensions: numbers, and one TIR variable for each name."""

    def __init__(self) -> None:
        self.named: dict[str, tirx.Var] = {}

    def extent(self, dim: Dim) -> Extent:
        """The extent of a dimension."""
        return dim if isinstance(dim, int) else self.named.setdefault(dim, tirx.Var(dim, "int64"))

    def shape(self, dims: Sequence[Dim]) -> tuple[Extent, ...]:
        """The extents of several."""
        return tuple(self.extent(dim) for dim in dims)


def declare(program: Program, sizes: Sizes) -> tuple[list[tirx.Buffer], list[tirx.Buffer]]:
    """Emit the parameters of a kernel that computes `program`: its arguments, then its outputs, as flat buffers."""
    tensors = [*program.arguments, *((shape, dtype) for _, shape, dtype in program.outputs)]
    buffers = [T.arg(f"x{i}", T.buffer(sizes.shape(shape), dtype)) for i, (shape, dtype) in enumerate(tensors)]
    flattened = [flat(buffer) for buffer in buffers]
    return flattened[: len(program.arguments)], flattened[len(program.arguments) :]


class _Merged(NamedTuple):
    """Dimensions of the space that are one to a kernel: their extent, and for each load whether it broadcasts here."""

    extent: Extent
    in_row: bool
    repeated: tuple[bool, ...]


class Evaluator:
    """Emits the vectors of a program's steps, a line after the other.

    A line is one pass over the last of the merged dimensions. The last `row_dims` dimensions of the space form rows,
    which are made of one or several lines ("segments"); without any, lines are all there is.

    Attributes
    ----------
    rows, segments, columns
        The extents: `rows` rows of `segments` lines of `columns` elements.
    known
        Values of steps that are not computed where they are read, because they were computed before.
    """

    def __init__(
        self, program: Program, unit: VectorUnit, sizes: Sizes, arguments: Sequence[tirx.Buffer], row_dims: int = 0
    ) -> None:
        self.program, self.unit, self.arguments = program, unit, arguments
        self.known: dict[int, Value] = {}
        self.loads = [number for number, step in enumerate(program.steps) if step[0] == "load"]
        merged = self._merged(sizes, row_dims)
        self.outer, self.columns = merged[:-1], merged[-1].extent
        self.rows = _product(dim.extent for dim in self.outer if not dim.in_row)
        self.segments = _product(dim.extent for dim in self.outer if dim.in_row)
        self.inner_repeated = dict(zip(self.loads, merged[-1].repeated, strict=True))
        self.places: dict[int, tirx.Expr] = {}
        self.scalars: dict[int, tirx.Expr] = {}
        self.start: Extent = 0

    def _merged(self, sizes: Sizes, row_dims: int) -> list[_Merged]:
        space, rank = self.program.space, len(self.program.space)
        views = [self.program.steps[number][2] for number in self.loads]
        counts_columns = ("column",) in self.program.steps

        def pattern(i: int) -> tuple:
            in_row, repeated = i >= rank - row_dims, tuple(view[i] == 1 for view in views)
            return in_row, repeated, counts_columns and i == rank - 1

        merged = []
        for (in_row, repeated, _), group in groupby((i for i in range(rank) if space[i] != 1), pattern):
            merged.append(_Merged(_product(sizes.extent(space[i]) for i in group), in_row, repeated))
        if not merged or merged[-1].in_row != (row_dims > 0):
            merged.append(_Merged(1, row_dims > 0, (True,) * len(views)))
        return merged

    def per_row(self, load: int) -> bool:
        """Whether a load has one value for a whole row."""
        index = self.loads.index(load)
        return self.inner_repeated[load] and all(dim.repeated[index] for dim in self.outer if dim.in_row)

    def whole_loads(self) -> list[int]:
        """The loads of arguments that broadcast nowhere."""
        merged = [dim.repeated for dim in self.outer]
        return [
            load
            for index, load in enumerate(self.loads)
            if not self.inner_repeated[load] and not any(repeated[index] for repeated in merged)
        ]

    def at(self, line: Extent) -> None:
        """Emit where each argument's part of a line starts, and the arguments that have one value for the line."""
        self.places, self.scalars = {}, {}
        self.start = line * self.columns
        for index, number in enumerate(self.loads):
            place = T.bind(i64(self._place(line, index, self.inner_repeated[number])))
            if self.inner_repeated[number]:
                buffer = self.arguments[self.program.steps[number][1]]
                self.scalars[number] = T.bind(self.unit.scalar(buffer, place))
            else:
                self.places[number] = place

    def _place(self, line: Extent, index: int, single: bool) -> Extent:
        if not single and not any(dim.repeated[index] for dim in self.outer):
            return line * self.columns
        place: Extent = 0
        stride: Extent = 1 if single else self.columns
        below: Extent = 1
        for dim in reversed(self.outer):
            if not dim.repeated[index]:
                place = place + remainder(quotient(line, below), dim.extent) * stride
                stride = stride * dim.extent
            below = below * dim.extent
        return place

    def vector(self, step: int, column: Extent, count: Extent | None, memo: dict[int, tirx.Expr]) -> tirx.Expr:
        """Emit the vector of a step from `column` on; `memo` holds what was already computed there."""
        if step not in memo:
            memo[step] = self._emitted(step, column, count, memo)
        return memo[step]

    def _emitted(self, step: int, column: Extent, count: Extent | None, memo: dict[int, tirx.Expr]) -> tirx.Expr:
        if step in self.known:
            return T.bind(self.known[step](column, count))
        head, *operands = self.program.steps[step]
        if head == "constant":
            return self.unit.splat(operands[0])
        if head == "length":
            return T.bind(self.unit.splat(i64(self.segments * self.columns).astype("float32")))
        if head == "column":
            return T.bind(self.unit.once(self.unit.numbers(column)))
        if head == "position":
            return T.bind(self.unit.once(self.unit.words(self.start + column)))
        if head == "bits":
            return self.unit.word(tirx.const(operands[0] - (operands[0] >> 31 << 32), "int32"))
        if head == "word":
            return self.unit.word(self.arguments[operands[0]][i64(operands[1])])
        if head == "load" and self.inner_repeated[step]:
            return self.unit.splat(self.scalars[step])
        if head == "load":
            return T.bind(self.unit.load(self.arguments[operands[0]], self.places[step] + column, count))
        operands = [self.vector(operand, column, count, memo) for operand in operands]
        return T.bind(self.unit.once(FUNCTIONS[head](*operands)))


def _product(extents: Iterable[Extent]) -> Extent:
    product: Extent = 1
    for extent in extents:
        product = extent if isinstance(product, int) and product == 1 else product * extent
    return product
