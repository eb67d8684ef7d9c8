"""Programs: graphs of vector operations over one space of elements, whatever computes them.

A program is a tuple of steps, each computed from earlier ones, so values that are read twice are computed once. All
values are float32; conditions are 0 or 1. Arguments broadcast to the space.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

#: A dimension: a number, or the name of one that is known at run time.
Dim: TypeAlias = int | str

Shape: TypeAlias = tuple[Dim, ...]

#: ("load", argument, view), ("constant", value), ("column",), ("length",), or (function, *numbers of earlier steps).
#: Random numbers are made of 32-bit words, held as the bits of float32 numbers: ("position",), ("bits", word), and
#: ("word", argument, index) of an int32 argument.
Step: TypeAlias = tuple

_SOURCES = ("load", "constant", "column", "length", "position", "bits", "word")


class Number(float):
    """A number as a step has it: equal to those of the same value and sign, so that 0 is not -0, and NaN is NaN."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, float) or math.isnan(self):
            return isinstance(other, float) and math.isnan(other)
        return float(self) == float(other) and math.copysign(1.0, self) == math.copysign(1.0, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return 0 if math.isnan(self) else hash(float(self))


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
        return self.step("constant", Number(value))

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
