"""Programs: graphs of vector operations over one space of elements, and the evaluator that emits their vectors.

A program is a tuple of steps, each computed from earlier ones, so values that are read twice are computed once. All
values are float32 vectors; conditions are 0 or 1. Arguments broadcast to the space; dimensions that every argument
treats alike are merged, so that lines are as long as they can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.targets.cpu.vector.expression import FUNCTIONS, Dim
from autocast.kernels.targets.cpu.vector.unit import Extent, VectorUnit, flat, i64, quotient, remainder

Shape: TypeAlias = tuple[Dim, ...]

#: ("load", argument, view), ("constant", value), ("column",), ("length",), or (function, *numbers of earlier steps).
#: Random numbers are made of 32-bit words, held as the bits of float32 numbers: ("position",), ("bits", word), and
#: ("word", argument, index) of an int32 argument.
Step: TypeAlias = tuple

#: A function from a column and the number of elements from there on (None: a whole vector) to a float32 vector.
Value: TypeAlias = Callable[[Any, Any], tirx.Expr]

_SOURCES = ("load", "constant", "column", "length", "position", "bits", "word")


@dataclass(frozen=True)
class Program:
    """What a kernel of vector operations computes.

    Attributes
    ----------
    arguments
        (shape, dtype) of each tensor that is read.
    space
        The shape that is computed on.
    steps
        In an order in which they can be computed. `("load", argument, view)` reads an argument, whose elements are
        looked at as an array of shape `view`: like `space`, but 1 in the dimensions that it broadcasts along.
        `("column",)` is the index along the last dimension, `("length",)` the number of elements of a row,
        `("position",)` the index in the whole space.
    outputs
        (step, shape, dtype) of each result.
    """

    arguments: tuple[tuple[Shape, str], ...]
    space: Shape
    steps: tuple[Step, ...]
    outputs: tuple[tuple[int, Shape, str], ...]

    def operands(self, step: int) -> tuple[int, ...]:
        """The steps that `step` is computed from."""
        return operands_of(self.steps[step])

    def undeclared_sizes(self) -> list[str]:
        """The names of dimensions that no tensor which is read or stored has: a kernel could not know their sizes."""
        tensors = (*(shape for shape, _ in self.arguments), *(shape for _, shape, _ in self.outputs))
        declared = {dim for shape in tensors for dim in shape}
        return [dim for dim in self.space if isinstance(dim, str) and dim not in declared]


def in_place(program: Program, outputs: Iterable[int]) -> list[list[int]]:
    """The pairs [output, argument] of `outputs` that may share memory: what they hold is as large, and in one order.

    Each element of the argument is read at the place where the output's is stored, and nowhere else. It is for a kernel
    to have read it before it stores. Kernels say so by their attribute `autocast.in_place`.
    """
    views: dict[int, set[Shape]] = {}
    for head, *rest in program.steps:
        if head == "load":
            views.setdefault(rest[0], set()).add(rest[1])
    width = {"float32": 4, "bfloat16": 2, "float16": 2}
    return [
        [output, argument]
        for output in outputs
        for argument, seen in sorted(views.items())
        if seen == {program.space}
        and width.get(program.arguments[argument][1]) == width.get(program.outputs[output][2], 0)
    ]


def operands_of(step: Step) -> tuple[int, ...]:
    """The numbers of the steps that `step` is computed from."""
    return () if step[0] in _SOURCES else step[1:]


@dataclass
class ProgramBuilder:
    """Collects the steps of a program; equal ones become one."""

    space: Shape
    arguments: list[tuple[Shape, str]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    numbers: dict[Step, int] = field(default_factory=dict)

    def argument(self, shape: Shape, dtype: str) -> int:
        """The number of a new argument."""
        self.arguments.append((shape, dtype))
        return len(self.arguments) - 1

    def load(self, argument: int, view: Shape) -> int:
        """The step that reads an argument, seen as an array of shape `view`, aligned to the end of the space."""
        return self.step("load", argument, (1,) * (len(self.space) - len(view)) + tuple(view))

    def constant(self, value: float) -> int:
        """The step that is `value` everywhere."""
        return self.step("constant", float(value))

    def step(self, function: str, *operands: Any) -> int:
        """The step that applies `function`."""
        step = (function, *operands)
        if step not in self.numbers:
            self.numbers[step] = len(self.steps)
            self.steps.append(step)
        return self.numbers[step]

    def finish(self, outputs: Sequence[tuple[int, Shape, str]]) -> Program:
        """The program that stores `outputs`."""
        return Program(tuple(self.arguments), self.space, tuple(self.steps), tuple(outputs))


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
