"""Generate kernels that work on rows: softmax, normalizations and reductions with elementwise work on both sides.

A value is a function from a place in the row to a vector of float32 numbers, so a kernel reads as the formula it
computes. Loads widen and stores narrow; everything between is float32. What is read by several sweeps and is not simply
loaded is kept in a row that stays in the first cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from autocast.kernels.target import instruction_set
from autocast.kernels.vector import llvm_ir, vector_math
from autocast.kernels.vector.expression import FUNCTIONS, Dim, Tree, called
from autocast.kernels.vector.unit import VectorUnit, flat, i64, rooted

#: Rows are independent; fewer elements than this run on one core.
_PARALLEL_ELEMENTS = 1 << 14

_ACCUMULATORS = 4

#: Reductions over the row: initial value, and how two partial results are combined.
_SUM = (0.0, lambda a, b: a + b)
_MAXIMUM = (float("-inf"), tirx.max)
_MINIMUM = (float("inf"), tirx.min)

REDUCTIONS = {"sum": _SUM, "mean": _SUM, "max": _MAXIMUM, "min": _MINIMUM}
NORMALIZATIONS = ("softmax", "log_softmax", "layer_norm", "rms_norm")


@dataclass(frozen=True)
class RowKernel:
    """What a row kernel computes.

    Attributes
    ----------
    arguments
        (shape, dtype) of each tensor that is read; shapes broadcast to `space` from the right, the last dimension is
        the row's length or 1.
    space
        The shape of the tensor whose rows are worked on.
    function
        One of `NORMALIZATIONS` or `REDUCTIONS`.
    before
        The tree of the rows that the function is applied to.
    parameters
        Trees of further operands (gamma and beta).
    after
        A tree over ("result",): what is stored.
    out
        (shape, dtype) of the result.
    epsilon
        Of a normalization.
    """

    arguments: tuple[tuple[tuple[Dim, ...], str], ...]
    space: tuple[Dim, ...]
    function: str
    before: Tree
    parameters: tuple[Tree, ...]
    after: Tree
    out: tuple[tuple[Dim, ...], str]
    epsilon: float = 0.0


def row_kernel(spec: RowKernel, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(*arguments, out)` that computes `spec` on `target`."""
    unit = VectorUnit(instruction_set(target))
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_attr({"tirx.noalias": True, "op_pattern": 8, "autocast.scheduled": True, "global_symbol": name})
        _Generator(spec, unit).emit()
    return rooted(builder.get())


Value = Callable[[Any, Any], tirx.Expr]


class _Generator:
    def __init__(self, spec: RowKernel, unit: VectorUnit) -> None:
        self.spec, self.unit = spec, unit
        self.sizes: dict[str, tirx.Var] = {}

    def size(self, dim: Dim) -> Any:
        return dim if isinstance(dim, int) else self.sizes.setdefault(dim, tirx.Var(dim, "int64"))

    def shape(self, dims: Sequence[Dim]) -> tuple:
        return tuple(self.size(dim) for dim in dims)

    def emit(self) -> None:
        """Emit the function's arguments and body."""
        spec = self.spec
        buffers = [T.arg(f"x{i}", T.buffer(self.shape(s), dtype)) for i, (s, dtype) in enumerate(spec.arguments)]
        out = T.arg("out", T.buffer(self.shape(spec.out[0]), spec.out[1]))
        self.buffers = [flat(buffer) for buffer in buffers]
        self.out = flat(out)
        self.columns = self.size(spec.space[-1])
        rows = math.prod(self.shape(spec.space[:-1]))
        functions = tuple(sorted(called(spec.before, spec.after) | {"exp"}))
        code = vector_math.math_ir(self.unit.lanes, functions) + llvm_ir.conversions_and_accesses(self.unit.isa)
        elements = rows * self.columns
        loop = T.serial if isinstance(elements, int) and elements < _PARALLEL_ELEMENTS else T.parallel
        with T.attr(tirx.const(0, "int32"), "pragma_import_llvm", code), loop(0, i64(rows)) as row:
            self.row(row)

    def row(self, row: tirx.Expr) -> None:
        """Emit the work on one row."""
        spec = self.spec
        self.places = [T.bind(self.place(row, shape)) for shape, _ in spec.arguments]
        data = self.kept(spec.before)
        if spec.function in REDUCTIONS:
            result = self.reduce(data, *REDUCTIONS[spec.function])
            if spec.function == "mean":
                result = result * self.reciprocal_of_length()
            self.unit.store(self.out, row, self.unit.splat(result), 1)
            return
        normalized = getattr(self, f"_{spec.function}")(data)
        start = T.bind(row * i64(self.columns))
        stored = self.tree(spec.after, normalized)
        self.sweep(lambda c, count, _: self.unit.store(self.out, start + c, stored(c, count), count))

    # ---- the functions ----

    def _softmax(self, data: Value) -> Value:
        maximum = self.reduce(data, *_MAXIMUM)
        weights = self.scratch_row()

        def weight(c: Any, count: Any) -> tirx.Expr:
            value = T.bind(self.shifted_exp(data, maximum)(c, count))
            self.unit.store(weights, c, value)
            return value

        factor = T.bind(tirx.const(1.0, "float32") / self.reduce(weight, *_SUM))
        return lambda c, count: self.unit.load(weights, c) * self.unit.splat(factor)

    def _log_softmax(self, data: Value) -> Value:
        maximum = self.reduce(data, *_MAXIMUM)
        total = self.reduce(self.shifted_exp(data, maximum), *_SUM)
        offset = T.bind(maximum + tirx.log(total))
        return lambda c, count: data(c, count) - self.unit.splat(offset)

    def _layer_norm(self, data: Value) -> Value:
        mean = T.bind(self.reduce(data, *_SUM) * self.reciprocal_of_length())
        factor = self.inverse_deviation(lambda c, count: data(c, count) - self.unit.splat(mean))
        gamma, beta = (self.tree(parameter) for parameter in self.spec.parameters)

        def normalized(c: Any, count: Any) -> tirx.Expr:
            centered = (data(c, count) - self.unit.splat(mean)) * self.unit.splat(factor)
            return self.unit.multiply_add(centered, gamma(c, count), beta(c, count))

        return normalized

    def _rms_norm(self, data: Value) -> Value:
        factor = self.inverse_deviation(data)
        (gamma,) = (self.tree(parameter) for parameter in self.spec.parameters)
        return lambda c, count: data(c, count) * self.unit.splat(factor) * gamma(c, count)

    # ---- the parts that they are made of ----

    def shifted_exp(self, data: Value, maximum: tirx.Expr) -> Value:
        """exp(data - maximum), which cannot overflow."""
        return lambda c, count: vector_math.call("exp", data(c, count) - self.unit.splat(maximum))

    def reciprocal_of_length(self) -> tirx.Expr:
        if isinstance(self.columns, int):
            return tirx.const(1.0 / self.columns, "float32")
        return tirx.const(1.0, "float32") / self.columns.astype("float32")

    def inverse_deviation(self, data: Value) -> tirx.Expr:
        """1 / sqrt(mean of the squares + epsilon)."""

        def square(c: Any, count: Any) -> tirx.Expr:
            value = T.bind(data(c, count))
            return value * value

        mean = self.reduce(square, *_SUM) * self.reciprocal_of_length()
        one, epsilon = tirx.const(1.0, "float32"), tirx.const(self.spec.epsilon, "float32")
        return T.bind(one / tirx.sqrt(mean + epsilon))

    def kept(self, tree: Tree) -> Value:
        """The values of `tree`: loads as they are, anything else computed once into a row of scratch."""
        value = self.tree(tree)
        if tree[0] == "load":
            return value
        row = self.scratch_row()
        self.sweep(lambda c, count, _: self.unit.store(row, c, value(c, count)))
        return lambda c, count: self.unit.load(row, c)

    def scratch_row(self) -> tirx.Buffer:
        return self.unit.scratch(self.columns + self.unit.lanes, "float32")

    def tree(self, tree: Tree, result: Value | None = None) -> Value:
        """The value of an expression tree."""
        head = tree[0]
        if head == "result":
            assert result is not None
            return result
        if head == "constant":
            return lambda c, count: self.unit.splat(tree[1])
        if head == "load":
            return self.argument(tree[1])
        operands = [self.tree(operand, result) for operand in tree[1:]]
        return lambda c, count: FUNCTIONS[head](*[operand(c, count) for operand in operands])

    def argument(self, index: int) -> Value:
        buffer, place = self.buffers[index], self.places[index]
        shape = self.spec.arguments[index][0]
        if not shape or shape[-1] == 1 != self.spec.space[-1]:
            return lambda c, count: self.unit.splat(buffer[place])
        return lambda c, count: self.unit.load(buffer, place + c, count)

    def place(self, row: tirx.Expr, shape: tuple[Dim, ...]) -> tirx.Expr:
        """Where the row of `space` with number `row` starts in an argument of `shape`."""
        place, stride, below = i64(0), self.size(shape[-1]) if shape else 1, 1
        for dim, whole in zip(reversed(shape[:-1]), reversed(self.spec.space[:-1]), strict=False):
            if dim != 1:
                place = place + row // i64(below) % i64(self.size(whole)) * i64(stride)
                stride = stride * self.size(dim)
            below = below * self.size(whole)
        return place

    def reduce(self, value: Value, initial: float, combine: Callable) -> tirx.Expr:
        """All values of a row, combined."""
        unit, lanes = self.unit, self.unit.lanes
        partial = T.alloc_buffer((_ACCUMULATORS * lanes,), "float32", scope="local")
        for slot in range(_ACCUMULATORS):
            T.buffer_store(partial, unit.splat(initial), [unit.ramp(slot * lanes)])

        def accumulate(c: Any, count: Any, slot: int) -> None:
            vector = value(c, count)
            if count is not None:
                inside = T.ramp(i64(0), 1, lanes) < T.broadcast(i64(count), lanes)
                vector = tirx.Select(inside, vector, unit.splat(initial))
            place = unit.ramp(slot * lanes)
            T.buffer_store(partial, combine(partial[place], vector), [place])

        self.sweep(accumulate)
        width = _ACCUMULATORS * lanes
        while width > 1:
            width //= 2
            low, high = (T.ramp(i64(start), 1, width) if width > 1 else i64(start) for start in (0, width))
            T.buffer_store(partial, combine(partial[low], partial[high]), [low])
        return T.bind(partial[i64(0)])

    def sweep(self, body: Callable[[Any, Any, int], None]) -> None:
        """`body(column, count, slot)` for each vector of a row; a count is given for the last, incomplete one."""
        lanes, columns = self.unit.lanes, self.columns
        if not isinstance(columns, int):
            with T.serial(0, i64(columns // lanes)) as j:
                body(j * lanes, None, 0)
            body(columns // lanes * lanes, columns % lanes, 0)
            return
        vectors = columns // lanes
        step = min(_ACCUMULATORS, max(vectors, 1))
        if vectors // step > 1:
            with T.serial(0, i64(vectors // step)) as j:
                for slot in range(step):
                    body((j * step + slot) * lanes, None, slot)
        rest = vectors // step * step if vectors // step > 1 else 0
        for j in range(rest, vectors):
            body(i64(j * lanes), None, (j - rest) % _ACCUMULATORS)
        if columns % lanes:
            body(i64(vectors * lanes), i64(columns % lanes), vectors % _ACCUMULATORS)
