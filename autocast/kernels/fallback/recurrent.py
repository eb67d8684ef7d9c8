"""Recurrences over time that no rule took: plain loops, one sequence of the batch after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import mutator
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from autocast.ir import op_name, storage
from autocast.ir.rewriting import BindingRewriter, rewrite_functions
from autocast.kernels.backend import rooted
from autocast.kernels.extents import Extent, i64
from autocast.kernels.fallback.schedule import SCHEDULED
from autocast.kernels.matching.recurrent.calls import recurrence_of
from autocast.kernels.specs.cells import Functions, backward_step, cell_step, forward_step
from autocast.kernels.specs.recurrent import Recurrence
from autocast.kernels.storage import LOW
from autocast.operators import Kind, is_kind


def loops(spec: Recurrence) -> tirx.PrimFunc:
    """A destination-passing TIR function that computes `spec` in the dtype that its tensors have."""
    sizes: dict[str, tirx.Var] = {}

    def extent(dim: int | str) -> Extent:
        return dim if isinstance(dim, int) else sizes.setdefault(dim, tirx.Var(dim, "int64"))

    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_attr({"tirx.noalias": True, "op_pattern": 8, SCHEDULED: True})
        arguments, results = (
            [
                T.arg(f"{kind}{i}", T.buffer([extent(dim) for dim in shape], dtype))
                for i, (shape, dtype) in enumerate(of)
            ]
            for kind, of in (("x", spec.arguments), ("y", spec.results))
        )
        with T.parallel(0, i64(extent(spec.batch))) as row:
            _Sequence(spec, arguments, results, row, extent(spec.steps)).emit()
    return rooted(builder.get())


class _Sequence:
    """All steps of the sequence of number `row`."""

    def __init__(
        self, spec: Recurrence, arguments: list[tirx.Buffer], results: list[tirx.Buffer], row: tirx.Expr, steps: Extent
    ) -> None:
        self.spec, self.arguments, self.results, self.row, self.steps = spec, arguments, results, row, steps
        self.dtype = spec.results[1][1]
        self.functions = Functions(_sigmoid, tirx.tanh, T.bind, lambda value: tirx.const(value, self.dtype))
        self.sums = T.alloc_buffer((spec.hidden * (1 if spec.backward else spec.gates),), self.dtype)
        self.operand = T.alloc_buffer((spec.operand,), self.dtype)
        self.states = {result: T.alloc_buffer((spec.hidden,), self.dtype) for result in spec.states}

    def emit(self) -> None:
        spec = self.spec
        if spec.backward and spec.cell == "lstm":
            self.cells = T.alloc_buffer((self.steps, spec.hidden), self.dtype)
            self._begin({2: 2})
            self._each_step(spec.reverse, lambda: cell_step(self))
        self._begin(spec.states)
        with T.serial(0, spec.operand) as i:
            first = self.states[1][i] if not spec.backward else self.functions.number(0.0)
            T.buffer_store(self.operand, first, [i])
        if spec.backward:
            self._each_step(not spec.reverse, lambda: backward_step(spec, self), self._multiply)
            self._multiply()
            with T.serial(0, spec.hidden) as self.unit:
                self.put_state(1, self.product() + self.state(1))
        else:
            self._each_step(spec.reverse, lambda: forward_step(spec, self), self._multiply)
        for result, state in self.states.items():
            with T.serial(0, spec.hidden) as unit:
                T.buffer_store(self.results[result], state[unit], [self.row, unit])

    def _begin(self, states: dict[int, int]) -> None:
        for result, argument in states.items():
            with T.serial(0, self.spec.hidden) as unit:
                T.buffer_store(self.states[result], self._read(argument, self.row, unit), [unit])

    def _each_step(
        self, reverse: bool, each_unit: Callable[[], None], before: Callable[[], None] = lambda: None
    ) -> None:
        with T.serial(0, i64(self.steps)) as step:
            self.time = T.bind(self.steps - 1 - step) if reverse else step
            before()
            with T.serial(0, self.spec.hidden) as self.unit:
                each_unit()

    def _multiply(self) -> None:
        """The operand times the weight, whose rows are gates': a backward step adds over all of them."""
        count, summed = self.sums.shape[0], self.operand.shape[0]
        with T.serial(0, count) as column:
            T.buffer_store(self.sums, self.functions.number(0.0), [column])
            with T.serial(0, summed) as k:
                weight = self._read(1, k, column) if self.spec.backward else self._read(1, column, k)
                T.buffer_store(self.sums, self.sums[column] + self.operand[k] * weight, [column])

    def _read(self, argument: int, *place: Extent) -> tirx.Expr:
        return self.arguments[argument][place]

    def _place(self, gate: int) -> Extent:
        return self.unit + gate * self.spec.hidden

    def step(self, argument: int, gate: int = 0) -> tirx.Expr:
        return T.bind(self._read(argument, self.time, self.row, self._place(gate)))

    def constant(self, argument: int) -> tirx.Expr:
        return self._read(argument, self.unit)

    def state(self, result: int) -> tirx.Expr:
        return T.bind(self.states[result][self.unit])

    def product(self, gate: int = 0) -> tirx.Expr:
        return T.bind(self.sums[self._place(gate)])

    def kept_cell(self) -> tirx.Expr:
        return T.bind(self.cells[self.time, self.unit])

    def put_step(self, value: tirx.Expr, gate: int = 0) -> None:
        T.buffer_store(self.results[0], value, [self.time, self.row, self._place(gate)])

    def put_state(self, result: int, value: tirx.Expr) -> None:
        T.buffer_store(self.states[result], value, [self.unit])

    def put_operand(self, value: tirx.Expr, gate: int = 0) -> None:
        T.buffer_store(self.operand, value, [self._place(gate)])

    def keep_cell(self, value: tirx.Expr) -> None:
        T.buffer_store(self.cells, value, [self.time, self.unit])


def _sigmoid(x: tirx.Expr) -> tirx.Expr:
    one = tirx.const(1.0, str(x.ty))
    return one / (one + tirx.exp(tirx.const(0.0, str(x.ty)) - x))


@mutator
class _WithLoops(BindingRewriter):
    def __init__(self, mod: tvm.IRModule, keep: Callable[[relax.Call], bool]) -> None:
        super().__init__(mod)
        self.keep = keep

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call: Any = binding.value
        if not is_kind(call, Kind.RECURRENCE) or self.keep(call):
            return None
        operands = [self.widened(self.new(operand)) for operand in call.args]
        wide = self.builder_.normalize(relax.Call(call.op, operands, call.attrs))
        function = self.builder_.add_func(loops(recurrence_of(wide)), str(op_name(call)).rpartition(".")[2])
        whole = self.emit(relax.call_tir(function, operands, list(wide.ty.fields)))
        fields = [self.emit(relax.TupleGetItem(whole, place)) for place in range(len(call.ty.fields))]
        return relax.Tuple(
            [self.stored(field, str(ty.dtype)) for field, ty in zip(fields, call.ty.fields, strict=True)]
        )

    def widened(self, operand: relax.Expr) -> relax.Expr:
        return self.stored(operand, "float32") if storage(operand) in LOW else operand

    def stored(self, tensor: relax.Expr, dtype: str) -> relax.Expr:
        return tensor if storage(tensor) == dtype else self.emit(relax.op.astype(tensor, dtype))


def write_recurrences(mod: tvm.IRModule, keep: Callable[[relax.Call], bool]) -> tvm.IRModule:
    """Write the loops of recurrences over time, but of those calls that are to be kept for kernels.

    Before::                                        After::

        y = R.nn.rnn(x, w, h, reverse=False, ...)       y = R.call_tir(rnn, (x, w, h))
    """
    return rewrite_functions(mod, _WithLoops, keep)
