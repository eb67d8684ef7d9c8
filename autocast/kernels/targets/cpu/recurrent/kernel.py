"""Recurrences over time: a product and the arithmetic of the cells at each step, in one kernel for all steps.

At each step, the states of the batch are multiplied by the packed recurrent weight, by the tiles and panels of matrix
products; their sums, of a vector of units, become the next states while they are in a cache. States are float32;
what is multiplied is a copy of them in the dtype of the weight. There are two of these, as a step reads the one while
it writes the other.

Threads share the sequences of the batch: each goes through time by itself. Where there are few of them, or the weight
is larger than a core's cache, threads share the units, and meet after every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, ceil_div, i64
from autocast.kernels.specs.cells import Functions, backward_step, cell_step, forward_step
from autocast.kernels.specs.epilogue import Epilogue
from autocast.kernels.specs.products import Product
from autocast.kernels.specs.recurrent import Recurrence
from autocast.kernels.targets.cpu.instruction_sets import cores, instruction_set
from autocast.kernels.targets.cpu.products.blocking import choose_blocking
from autocast.kernels.targets.cpu.products.kernel import snippets
from autocast.kernels.targets.cpu.products.pack import Source
from autocast.kernels.targets.cpu.products.panels import PanelWalk, Task
from autocast.kernels.targets.cpu.products.tile import Output
from autocast.kernels.targets.cpu.recurrent.weights import RecurrentWeight
from autocast.kernels.targets.cpu.vector import vector_math
from autocast.kernels.targets.cpu.vector.evaluator import Sizes
from autocast.kernels.targets.cpu.vector.finish import Finish
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, flat, importing, kernel_function

#: From so many products at a step on, threads that share its units gain more than they lose by waiting for each other.
_SHARED_STEP = 1 << 19
#: Bytes of packed weights that stay in the cache of a core while it goes through time.
_CACHED = 1 << 20


def recurrence(spec: Recurrence, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function that computes `spec`, whose weight is packed as `RecurrentWeight` has it."""
    isa = instruction_set(target)
    with kernel_function(name) as finished:
        _Generator(spec, VectorUnit(isa), cores(target)).emit()
    return finished()


class _Part(NamedTuple):
    """What one task computes: sequences from `row` to `end`, and panels of the weight."""

    row: Extent
    end: Extent
    first_tile: tirx.Expr
    last_tile: tirx.Expr
    first_panel: Extent
    last_panel: Extent


class _Generator:
    def __init__(self, spec: Recurrence, unit: VectorUnit, threads: int) -> None:
        self.spec, self.unit, self.threads = spec, unit, threads
        self.weight = RecurrentWeight.of(spec, unit.isa)
        pairs = self.weight.pairs
        self.word, self.multiplied = ("int32", "bfloat16") if pairs else ("float32", "float32")
        self.product = Product(
            None, self.weight.columns, self.weight.k, self.multiplied, self.multiplied, "float32", b_packed=True
        )
        self.k_words = math.ceil(self.weight.k / self.weight.per_word)
        self.functions = Functions(
            partial(vector_math.call, "sigmoid"),
            partial(vector_math.call, "tanh"),
            lambda value: T.bind(unit.once(value)),
            unit.splat,
        )

    def emit(self) -> None:
        """Emit the function's arguments and body."""
        spec, unit, sizes = self.spec, self.unit, Sizes()
        shapes = [*spec.arguments]
        shapes[1] = (self.weight.shape, self.weight.packed_dtype)
        arguments = [T.arg(f"x{i}", T.buffer(sizes.shape(shape), dtype)) for i, (shape, dtype) in enumerate(shapes)]
        results = [T.arg(f"y{i}", T.buffer(sizes.shape(s), dtype)) for i, (s, dtype) in enumerate(spec.results)]
        self.steps, self.batch = sizes.extent(spec.steps), sizes.extent(spec.batch)
        multiplications = i64(self.steps) * i64(self.batch) * (spec.gates * spec.hidden**2)
        T.func_attr({"autocast.flops": multiplications * 2})
        self.panels = flat(arguments[1], self.word, self.weight.per_word)
        self.arguments, self.results = [flat(x) for x in arguments], [flat(y) for y in results]
        math_ir = vector_math.math_ir(unit.lanes, ("sigmoid", "tanh"))
        with importing(math_ir + snippets(self.product, unit, pairs=self.weight.pairs)):
            # TIR's analysis of what is made of run-time sizes takes seconds.
            self.sums = unit.scratch(self.batch * self.weight.columns, "float32")
            self.operands = unit.scratch(self.batch * (2 * self.k_words), self.word)
            self.half = unit.opaque(self.batch * (self.k_words * self.weight.per_word))
            self.operand = flat_as(self.operands, self.multiplied, self.weight.per_word)
            if spec.backward and spec.cell == "lstm":
                self.cells = unit.scratch(self.steps * self.batch * spec.hidden, "float32")
            if isinstance(self.batch, int):
                self._all(self.batch)
                return
            with T.If(self.batch.equal(1)):
                with T.Then():
                    self._all(1)
                with T.Else():
                    self._all(None)

    def _all(self, batch: int | None) -> None:
        """All of it, for a batch of this size."""
        self.rows: Extent = self.batch if batch is None else batch
        shared = self._shares_units(batch)
        tasks = 1 if self.threads == 1 else self.threads
        each = batch if batch is None or shared else math.ceil(batch / tasks)
        product = replace(self.product, m=each)
        blocking = choose_blocking(product, self.unit.isa, 1, pairs=self.weight.pairs, a_in_place=True)
        self.blocking = replace(blocking, row_tasks=1, column_tasks=1)
        tiles = ceil_div(self.rows, blocking.tile_rows)
        if shared and tasks > 1:
            aligned = math.lcm(self.weight.gates_of_unit, blocking.tile_vectors) // blocking.tile_vectors
            groups = math.ceil(self.weight.panels / aligned)
            tasks = min(tasks, groups)

            def part(task: tirx.Expr) -> _Part:
                first, last = (
                    T.bind(tirx.min((task + side) * groups // tasks * aligned, i64(self.weight.panels)))
                    for side in (0, 1)
                )
                return _Part(0, self.rows, i64(0), i64(tiles), first, last)

            self._through_time(lambda emit: _parallel(tasks, lambda task: emit(part(task))), self._whole(tiles))
            return
        if batch is not None and batch < 2 * blocking.tile_rows:
            tasks = 1

        def through_time(task: tirx.Expr) -> None:
            first, last = T.bind(task * i64(tiles) // tasks), T.bind((task + 1) * i64(tiles) // tasks)
            row, end = (T.bind(tirx.min(tile * blocking.tile_rows, i64(self.rows))) for tile in (first, last))
            rows = _Part(row, end, first, last, 0, self.weight.panels)
            self._through_time(lambda emit: emit(rows), rows)

        _parallel(tasks, through_time)

    def _whole(self, tiles: Extent) -> _Part:
        return _Part(0, self.rows, i64(0), i64(tiles), 0, self.weight.panels)

    def _shares_units(self, batch: int | None) -> bool:
        """Whether threads share the units of each step."""
        size = self.weight.k * self.weight.columns
        if batch is None:
            return size * (2 if self.weight.pairs else 4) > _CACHED
        return batch * size >= _SHARED_STEP

    def _through_time(self, each: Callable[[Callable[[_Part], None]], None], whole: _Part) -> None:
        """All steps, of which `each` computes a part or all parts."""
        spec = self.spec
        if spec.backward and spec.cell == "lstm":
            self._begin({2: 2}, whole)
            with T.serial(0, i64(self.steps)) as step:
                time = T.bind(self.steps - 1 - step) if spec.reverse else step
                self._units(whole, time, step, cell_step)
        self._begin(spec.states, whole)
        self._first_operands(whole)
        backwards = spec.reverse != spec.backward
        with T.serial(0, i64(self.steps)) as step:
            time = T.bind(self.steps - 1 - step) if backwards else step

            def one(part: _Part) -> None:
                self._multiply(part, step)
                self._units(part, time, step, self._step)

            each(one)
        if spec.backward:
            each(lambda part: self._multiply(part, i64(self.steps)))
            self._units(whole, i64(0), i64(0), lambda e: e.put_state(1, e.product() + e.state(1)))

    def _step(self, element: _Vector) -> None:
        (backward_step if self.spec.backward else forward_step)(self.spec, element)

    def _begin(self, states: dict[int, int], part: _Part) -> None:
        """States are what the first ones are."""
        for result, argument in states.items():
            self._units(part, i64(0), i64(0), partial(_Vector.begin, result=result, argument=argument))

    def _first_operands(self, part: _Part) -> None:
        """Those of the first step: states, or no adjoints; what fills the last word up is 0 in both copies."""
        width = self.k_words * self.weight.per_word
        if self.spec.backward or width != self.weight.k:
            size = tvm.DataType(self.multiplied).itemsize * width
            for copy in (0, 1):
                place = T.address_of(self.operand[i64(copy) * self.half + i64(part.row) * width])
                T.evaluate(tirx.call_extern("void", "memset", place, 0, (i64(part.end) - i64(part.row)) * size))
        if not self.spec.backward:
            self._units(part, i64(0), i64(1), lambda e: e.put_operand(e.state(1)))

    def _multiply(self, part: _Part, step: tirx.Expr) -> None:
        """The sums of products of the rows and panels of `part`."""
        base = T.bind(step % 2 * self.half)
        width = self.k_words * self.weight.per_word
        task = Task(
            a=Source(self.operand, base, self.rows, self.weight.k, width, True, self.weight.pairs),
            b=Source(self.operand, i64(0), self.weight.columns, self.weight.k, width, True, self.weight.pairs),
            output=Output(Finish(self.unit, Epilogue(), self.sums), i64(0), self.weight.columns),
            a_words=self.operands,
            a_words_base=T.bind(base // self.weight.per_word),
            b_panels=self.panels,
            b_panel_words=self.weight.words * self.weight.panel,
            first_tile=part.first_tile,
            last_tile=part.last_tile,
            first_panel=i64(part.first_panel),
            last_panel=i64(part.last_panel),
        )
        PanelWalk(self.unit, self.blocking, task).emit()

    def _units(self, part: _Part, time: tirx.Expr, step: tirx.Expr, emit: Callable[[_Vector], None]) -> None:
        """`emit` for each row and each vector of units of `part`."""
        lanes, hidden = self.unit.lanes, self.spec.hidden
        gates, vectors = self.weight.gates_of_unit, self.weight.panel // self.unit.lanes
        whole = hidden // lanes
        first, last = (i64(panel) * vectors // gates for panel in (part.first_panel, part.last_panel))
        with T.serial(i64(part.row), i64(part.end)) as row:
            if whole:
                with T.serial(first, tirx.min(last, i64(whole))) as block:
                    emit(_Vector(self, time, step, row, T.bind(block * lanes), None))
            if hidden % lanes:
                with T.If(tirx.all(first <= whole, last > whole)), T.Then():
                    emit(_Vector(self, time, step, row, i64(whole * lanes), hidden % lanes))


class _Vector:
    """A vector of units of one row, at one step: the first `count` lanes, or all."""

    def __init__(
        self,
        generator: _Generator,
        time: tirx.Expr,
        step: tirx.Expr,
        row: tirx.Expr,
        unit: tirx.Expr,
        count: int | None,
    ) -> None:
        self.g, self.time, self.step_number, self.row, self.column, self.count = generator, time, step, row, unit, count
        self.functions, self.hidden = generator.functions, generator.spec.hidden

    def _load(self, buffer: tirx.Buffer, place: tirx.Expr) -> tirx.Expr:
        return T.bind(self.g.unit.load(buffer, place, self.count))

    def _store(self, buffer: tirx.Buffer, place: tirx.Expr, value: tirx.Expr) -> None:
        self.g.unit.store(buffer, place, value, self.count)

    def _of_step(self, width: int, gate: int) -> tirx.Expr:
        line = self.time * self.g.batch + self.row
        return line * width + (self.column + gate * self.hidden)

    @property
    def _of_row(self) -> tirx.Expr:
        return self.row * self.hidden + self.column

    def step(self, argument: int, gate: int = 0) -> tirx.Expr:
        width = self.g.spec.arguments[argument][0][2]
        assert isinstance(width, int)
        return self._load(self.g.arguments[argument], self._of_step(width, gate))

    def constant(self, argument: int) -> tirx.Expr:
        return self._load(self.g.arguments[argument], self.column)

    def first(self, argument: int) -> tirx.Expr:
        return self._load(self.g.arguments[argument], self._of_row)

    def begin(self, result: int, argument: int) -> None:
        """A state is that of an argument."""
        self.put_state(result, self.first(argument))

    def state(self, result: int) -> tirx.Expr:
        return self._load(self.g.results[result], self._of_row)

    def product(self, gate: int = 0) -> tirx.Expr:
        weight = self.g.weight
        place = self.row * weight.columns + self.column * weight.gates_of_unit + gate * weight.lanes
        return T.bind(self.g.unit.load(self.g.sums, place))

    def kept_cell(self) -> tirx.Expr:
        return self._load(self.g.cells, self._of_step(self.hidden, 0))

    def put_step(self, value: tirx.Expr, gate: int = 0) -> None:
        width = self.g.spec.results[0][0][2]
        assert isinstance(width, int)
        self._store(self.g.results[0], self._of_step(width, gate), value)

    def put_state(self, result: int, value: tirx.Expr) -> None:
        self._store(self.g.results[result], self._of_row, value)

    def put_operand(self, value: tirx.Expr, gate: int = 0) -> None:
        width = self.g.k_words * self.g.weight.per_word
        place = (self.step_number + 1) % 2 * self.g.half + self.row * width + (self.column + gate * self.hidden)
        self._store(self.g.operand, place, value)

    def keep_cell(self, value: tirx.Expr) -> None:
        self._store(self.g.cells, self._of_step(self.hidden, 0), value)


def flat_as(buffer: tirx.Buffer, dtype: str, per_element: int) -> tirx.Buffer:
    """The memory of a flat buffer as `per_element` times as many elements of `dtype`."""
    return T.decl_buffer((buffer.shape[0] * per_element,), dtype, data=buffer.data)


def _parallel(tasks: int, emit: Callable[[tirx.Expr], None]) -> None:
    if tasks == 1:
        emit(i64(0))
        return
    with T.parallel(0, i64(tasks)) as task:
        emit(task)
