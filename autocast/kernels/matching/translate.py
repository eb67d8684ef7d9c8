"""Translate elementwise bindings of a Relax function to the steps of a program."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
import tvm_ffi
from tvm import relax

from autocast.ir import dims, is_op, is_tensor, number_of, same_shape, shape_of, storage
from autocast.kernels.matching.functions import operation
from autocast.kernels.specs.program import ProgramBuilder, Shape
from autocast.kernels.specs.sizes import DimensionNames
from autocast.kernels.storage import LOADED, LOW
from autocast.operators import Kind, is_kind
from autocast.operators.own.dropout import random_bits
from autocast.operators.own.noise import SECOND

#: Operators whose elements depend on where they are, so that only a space of their own shape computes them.
SEEDED = tuple(f"relax.nn.{name}" for name in ("seeded_dropout", "seeded_normal", "seeded_uniform", "stochastic_round"))

#: Operators that only vectors compute whole: our own, and those that TVM cannot compute.
VECTOR_OPERATORS = (*SEEDED, "relax.nn.log1p", "relax.nn.expm1", "relax.ewise_fma", "relax.nn.prelu")

_PRODUCTS = ("multiply", "square", "cube")

#: Dtypes whose values vectors of float32 hold exactly.
EXACT = ("float32", *LOW, "bool")


def declined(var: relax.Var, value: relax.Expr) -> str | None:
    """Why no vector program computes the binding of `value` to `var`; None where one does."""
    shape = shape_of(var)
    if shape is None:
        return "its shape is not known"
    if any(isinstance(dim, int) and dim == 0 for dim in shape):
        return "it has no elements"
    if is_op(value, "relax.astype"):
        source, result = storage(value.args[0]), storage(var)
        if shape_of(value.args[0]) is None or source not in LOADED or result not in LOADED:
            return f"it casts {source} to {result}"
        exact = source in EXACT or result in EXACT
        return None if exact else f"float32 cannot hold every {source}"
    known = ("random", (value.args[0],)) if is_op(value, *SEEDED) else operation(value)
    if known is None:
        return "no function of vectors computes it"
    operands = [operand for operand in known[1] if not isinstance(operand, float)]
    if any(shape_of(operand) is None for operand in operands):
        return "the shape of an operand is not known"
    unfit = [storage(operand) for operand in (*operands, var) if storage(operand) not in EXACT]
    return f"it computes in {unfit[0]}" if unfit else None


def is_rounded_load(value: Any, bound: Mapping[relax.Var, relax.Expr]) -> bool:
    """Whether `value` narrows a tensor that is in memory in float32: who reads it rounds what it loads.

    What is still to be computed is stored narrowed by its own kernel.
    """
    narrows = is_op(value, "relax.astype") and storage(value) in LOW and storage(value.args[0]) == "float32"
    return narrows and is_in_memory(value.args[0], bound)


def is_in_memory(source: Any, bound: Mapping[relax.Var, relax.Expr]) -> bool:
    """Whether an argument, or what a kernel computes that is chosen already, has the elements of `source`."""
    while isinstance(source, relax.Var) and source in bound:
        source = bound[source]
        if isinstance(source, relax.TupleGetItem):
            source = source.tuple_value
        elif is_kind(source, Kind.VIEW):
            source = source.args[0]
    return isinstance(source, relax.Var) or is_op(source, "relax.call_tir")


class Translation:
    """Collects the program that computes members of a group over one space.

    Parameters
    ----------
    bound
        What each variable of the function is bound to.
    members
        The variables that the program computes; whatever else they read are arguments.
    space
        The dimensions of the members.

    Attributes
    ----------
    arguments
        The expressions that are read, in the order of the program's arguments.
    """

    def __init__(self, bound: Mapping[relax.Var, relax.Expr], members: Collection[relax.Var], space: tuple) -> None:
        self.bound, self.members = bound, members
        self._dimensions = DimensionNames()
        self.names: dict[Any, Any] = {}  # of each size, as it is said, the name of the dimension that it is
        self.builder = ProgramBuilder(self.named(space))
        self.arguments: list[relax.Expr] = []
        self.steps: dict[relax.Var, int] = {}

    def named(self, shape: tuple) -> Shape:
        """A shape with a name for each dimension that is known at run time: one for `n` and `n + 1 - 1`."""

        def name(dim: Any) -> Any:
            if isinstance(dim, int):
                return dim
            key = tvm_ffi.StructuralKey(dim)
            if key not in self.names:
                self.names[key] = self._dimensions.dim(dim)
            return self.names[key]

        return tuple(name(dim) for dim in shape)

    def output(self, var: relax.Var) -> tuple[int, Shape, str]:
        """The step, shape and dtype that store a member."""
        value = self.bound[var]
        step = self.value(value.args[0]) if is_op(value, "relax.astype") else self.value(var)
        return step, self.named(dims(var)), storage(var)

    def value(self, expr: relax.Expr) -> int:
        """The step that is `expr`, as float32 numbers."""
        if isinstance(expr, relax.Var) and expr in self.members:
            if expr not in self.steps:
                self.steps[expr] = self.computed(expr)
            return self.steps[expr]
        return self.leaf(expr)

    def computed(self, var: relax.Var) -> int:
        """The step that computes a member."""
        value = self.bound[var]
        if is_op(value, "relax.astype"):
            return self.rounded(self.value(value.args[0]), storage(value.args[0]), storage(var))
        if is_op(value, *SEEDED):
            return self.seeded(value)
        known = operation(value)
        assert known is not None
        function, operands = known
        steps = [self.constant(o) if isinstance(o, float) else self.value(o) for o in operands]
        return self.step(function, *self.unfused(function, steps))

    def unfused(self, function: str, operands: list[int]) -> list[int]:
        """The operands of a step, of which products are rounded before, so that equal ones leave nothing.

        Where one of two products is fused with their difference, `a * a - b * b` is not 0 of equal numbers, but what
        the other was rounded by, and perhaps negative. What is added to a product is, and fused with it.
        """
        products = [self.builder.steps[operand][0] in _PRODUCTS for operand in operands]
        if function != "subtract" and not (function == "add" and all(products)):
            return operands
        pairs = zip(operands, products, strict=True)
        return [self.step("unfused", operand) if is_product else operand for operand, is_product in pairs]

    def seeded(self, call: relax.Call) -> int:
        """The step of an operator of random numbers."""
        state = self.argument(call.args[1])

        def word(value: int) -> int:
            return self.builder.step("bits", value)

        def uniform(stream: int) -> int:
            return self.step("uniform", bits_of(stream))

        def bits_of(stream: int) -> int:
            seed, step = (self.builder.step("word", state, index) for index in (0, 1))
            place = self.builder.step("position")
            return random_bits(partial(self.step, "scramble"), place, seed, step, word(stream), word)

        stream = int(call.attrs["stream"])
        if is_op(call, "relax.nn.seeded_uniform"):
            return uniform(stream)
        if is_op(call, "relax.nn.seeded_normal"):
            length = self.step("log", self.step("subtract", self.constant(1.0), uniform(stream)))
            length = self.step("sqrt", self.step("multiply", length, self.constant(-2.0)))
            angle = self.step("multiply", uniform(stream + SECOND), self.constant(2 * math.pi))
            return self.step("multiply", length, self.step("cos", angle))
        x, bits = self.value(call.args[0]), bits_of(stream)
        if is_op(call, "relax.nn.stochastic_round"):
            return self.step("stochastic_round", x, bits)
        rate = float(call.attrs["rate"])
        return self.step("dropout", x, bits, self.constant(rate), self.constant(1 / (1 - rate)))

    def rounded(self, step: int, source: str, result: str) -> int:
        """A value as it is after it was stored in another dtype."""
        if result in (source, "float32") or source == "bool":
            return step
        if result == "bool":
            return self.step("not_equal", step, self.constant(0.0))
        if result in LOW:
            return self.step(f"round_{result}", step)
        return self.integer(step, np.iinfo(result))

    def integer(self, step: int, bounds: np.iinfo) -> int:
        """A value without its fraction, as an integer holds it.

        What 32 bits do not hold, and NaN, is -2^31, as processors have it; of 64 bits -2^63. Fewer wrap around.
        """
        whole, bits = self.step("trunc", step), max(bounds.bits, 32)
        kept, otherwise = whole, float(-(2 ** (bits - 1)))
        if bounds.bits < 32:
            above = self.step("subtract", whole, self.constant(float(bounds.min)))
            turns = self.step("floor", self.step("multiply", above, self.constant(2.0**-bounds.bits)))
            kept = self.step("subtract", whole, self.step("multiply", turns, self.constant(2.0**bounds.bits)))
            otherwise = 0.0
        is_held = self.step("less", self.step("abs", whole), self.constant(2.0 ** (bits - 1)))
        return self.step("where", is_held, kept, self.constant(otherwise))

    def leaf(self, expr: relax.Expr) -> int:
        """The step that reads what the program does not compute."""
        expr, view, roundings = self.source(expr)
        number = number_of(expr)
        step = self.load(expr, view) if number is None else self.constant(number)
        for dtype in reversed(roundings):
            step = self.rounded(step, "float32", dtype)
        return step

    def load(self, expr: relax.Expr, view: tuple) -> int:
        """The step that reads an argument, looked at as an array of shape `view`."""
        return self.builder.load(self.argument(expr), self.named(view))

    def argument(self, expr: relax.Expr) -> int:
        """The number of an argument of the program."""
        number = next((i for i, known in enumerate(self.arguments) if known.same_as(expr)), None)
        if number is None:
            number = self.builder.argument(self.named(dims(expr)), storage(expr))
            self.arguments.append(expr)
        return number

    def step(self, function: str, *operands: int) -> int:
        """The step that applies `function`."""
        return self.builder.step(function, *operands)

    def constant(self, value: float) -> int:
        """The step of a number."""
        return self.builder.constant(value)

    def sees_through(self, operand: relax.Expr, view: tuple) -> bool:
        """Whether a reshape or broadcast of `operand` to `view` may be read as `operand`."""
        return True

    def source(self, expr: relax.Expr) -> tuple[relax.Expr, tuple, list[str]]:
        """Where the elements of `expr` are before casts that loads make, the shape they are seen in, and roundings."""
        view, roundings = dims(expr), []
        while isinstance(expr, relax.Var) and expr in self.bound:
            value = self.bound[expr]
            operand = value.args[0] if isinstance(value, relax.Call) and len(value.args) > 0 else None
            if operand is None or not is_tensor(operand) or shape_of(operand) is None:
                break
            if is_op(value, "relax.broadcast_to") and same_shape(view, dims(expr)):
                if not self.sees_through(operand, view):
                    break
                view = dims(operand)
            elif is_rounded_load(value, self.bound):
                roundings.append(storage(expr))
            elif is_op(value, "relax.astype"):
                if storage(expr) != "float32" or storage(operand) not in LOADED:
                    break
            elif not is_kind(value, Kind.VIEW) or not self.sees_through(operand, view):
                break
            expr = operand
        return expr, view, roundings
