"""Generate kernels that work on rows: programs of vector operations and of reductions over the last dimensions.

A row is passed over in a few sweeps: each ends where a reduction's result is needed. What a later sweep reads again is
loaded again, computed again or kept in a row of scratch, whichever is cheapest. Short rows are unrolled as a whole, and
then everything stays in registers.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, ceil_div, i64, minimum
from autocast.kernels.specs.program import Program, in_place
from autocast.kernels.targets.cpu.instruction_sets import instruction_set
from autocast.kernels.targets.cpu.rows.plan import PICK, SCANS, Sweep, plan_sweeps
from autocast.kernels.targets.cpu.rows.reductions import CALLED, Accumulator, lanes_ir
from autocast.kernels.targets.cpu.vector import llvm_ir, vector_math
from autocast.kernels.targets.cpu.vector.evaluator import Evaluator, Sizes, Value, declare
from autocast.kernels.targets.cpu.vector.streaming import streamed, with_overwriting
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, importing, kernel_function, shared_loop

#: Rows are independent; fewer elements than this are worked on by one core.
_PARALLEL_ELEMENTS = 1 << 14

#: Bytes of a row of float32 that stays in the first cache beside what is loaded and stored.
_NEAR_BYTES = 1 << 14

#: Vectors that a reduction combines independently, so that no addition waits for the one before it.
_SLOTS = 4

#: Elements of a row whose sum is in float32 alone.
_BLOCK = 8192

#: Bytes that one prefetch fetches.
_CACHE_LINE = 64


def row_kernel(program: Program, row_dims: int, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(*arguments, *outputs)` that computes `program`.

    Parameters
    ----------
    program : Program
        Its steps may be the reductions, scans and picks of `rows.plan` too. Outputs have the shape of its space, or one
        element for each row.
    row_dims : int
        How many dimensions at the end of the space form a row.
    target : Target
        Which instruction set to use.
    name : str
        The function's global symbol.
    """
    unit = VectorUnit(instruction_set(target))

    def kernel(far: frozenset[int]) -> tirx.PrimFunc:
        with kernel_function(name) as finished:
            generator = _Generator(program, row_dims, unit, far)
            generator.emit()
        return finished().with_attr("autocast.in_place", generator.in_place())

    return with_overwriting(kernel, streamed([(shape, dtype) for _, shape, dtype in program.outputs], unit.lanes))


class _Generator:
    def __init__(self, program: Program, row_dims: int, unit: VectorUnit, far: frozenset[int]) -> None:
        self.program, self.unit = program, unit
        sizes = Sizes()
        arguments, self.outputs = declare(program, sizes)
        self.evaluator = Evaluator(program, unit, sizes, arguments, row_dims)
        columns, segments = self.evaluator.columns, self.evaluator.segments
        self.columns, self.segments = columns, segments
        static = isinstance(columns, int) and isinstance(segments, int)
        #: The results that are stored past the caches.
        self.streamed = far if static and columns % unit.lanes == 0 else frozenset()
        row_loads = frozenset(load for load in self.evaluator.loads if self.evaluator.per_row(load))
        near = static and 4 * columns * segments <= _NEAR_BYTES
        self.far = static and not near and segments == 1
        #: Whether a row has, or may have, so many elements that sums are ones of blocks.
        self.long = not static or columns * segments > 2 * _BLOCK
        self.plan = plan_sweeps(program, row_dims, row_loads, near)
        #: Few enough vectors to hold two of each in registers.
        self.unrolled = static and segments == 1 and columns <= unit.lanes * unit.isa.registers // 2

    def emit(self) -> None:
        """Emit the function's body."""
        heads = {step[0] for step in self.program.steps}
        functions = heads.union(*(CALLED.get(head, ()) for head in heads)) & set(vector_math.FUNCTIONS)
        lanes = self.unit.lanes
        code = vector_math.math_ir(lanes, tuple(sorted(functions))) + lanes_ir(lanes)
        code += llvm_ir.conversions_and_accesses(self.unit.isa)
        rows = self.evaluator.rows
        elements = rows * self.segments * self.columns
        small = isinstance(elements, int) and elements < _PARALLEL_ELEMENTS
        loop = T.serial(0, i64(rows)) if small else shared_loop(rows, streams=bool(self.streamed))
        with importing(code), loop as row:
            self.row(row)

    def in_place(self) -> list[list[int]]:
        """Which results may take whose place: those of the last sweep, if nothing is picked from the row after it."""
        heads = [step[0] for step in self.program.steps]
        if not self.plan.sweeps or any(heads[number] == PICK for number in self.plan.sweeps[-1].row_values):
            return []
        return in_place(self.program, self.plan.sweeps[-1].outputs)

    def row(self, row: tirx.Expr) -> None:
        """Emit the work on one row."""
        evaluator = self.evaluator
        evaluator.known.clear()
        self.memos: dict[int, dict[int, tirx.Expr]] = {}
        self.memo: dict[int, tirx.Expr] = {}
        self.segment: Extent = 0
        self.line = T.bind(i64(row * self.segments))
        evaluator.at(self.line)
        for number, step in enumerate(self.program.steps):
            if step[0] in SCANS:
                evaluator.known[number] = self.running_sum(step[1])
        self.row_values(self.plan.first)
        for sweep in self.plan.sweeps:
            self.sweep(sweep)
            self.row_values(sweep.row_values)
        for position in self.plan.row_outputs:
            self.unit.store(
                self.outputs[position], row, evaluator.vector(self.program.outputs[position][0], 0, 1, {}), 1
            )

    def row_values(self, steps: list[int]) -> None:
        """Emit values that are the same for the whole row."""
        for number in steps:
            picks = self.program.steps[number][0] == PICK
            operands = self.program.operands(number)
            self.know(number, self.picked(*operands) if picks else self.evaluator.vector(number, 0, None, {}))

    def know(self, number: int, vector: tirx.Expr) -> None:
        """Let the row value `number` be `vector` from here on."""
        self.evaluator.known[number] = lambda column, count: vector

    def recall(self, number: int, row: tirx.Buffer) -> None:
        """Let the values of step `number` be read from a row of scratch from here on."""
        self.evaluator.known[number] = lambda column, count: self.unit.load(row, self.segment * self.padded + column)

    def picked(self, value: int, place: int) -> tirx.Expr:
        """The value in the column that a row value names; 0 where there is no such column."""
        wanted = T.bind(_lane(self.evaluator.vector(place, 0, None, {})).astype("int64"))
        column = T.bind(tirx.max(tirx.min(wanted, i64(self.columns) - i64(1)), i64(0)))
        found = _lane(self.evaluator.vector(value, column, 1, {}))
        # Kept in memory: a simplifier moves what is only bound to where it is used, past a sweep that may overwrite it.
        kept = T.alloc_buffer((1,), "float32")
        T.buffer_store(kept, tirx.Select(wanted == column, found, tirx.const(0.0, "float32")), [0])
        return self.unit.splat(kept[0])

    def running_sum(self, operand: int) -> Value:
        """The sums of each value of a row and those before it, for a reader that goes from the first to the last."""
        carry = T.alloc_buffer((1,), "float64")  # so that the error does not grow along the row
        T.buffer_store(carry, tirx.const(0.0, "float64"), [0])

        def value(column: Extent, count: Extent | None) -> tirx.Expr:
            # Of the values that are known here: another running sum among them would go on from where it is.
            vector, unit = self.evaluator.vector(operand, column, count, self.memo), self.unit
            sums = T.bind(unit.once(tirx.call_pure_extern(unit.dtype, "autocast_running_sum", vector)))
            result = T.bind(unit.once(sums + unit.splat(carry[0].astype("float32"))))
            whole = tirx.call_pure_extern("float32", "autocast_last", sums)
            T.buffer_store(carry, carry[0] + whole.astype("float64"), [0])
            return result

        return value

    def sweep(self, sweep: Sweep) -> None:
        """Emit one pass over the row."""
        vectors = self.columns // self.unit.lanes
        slots = max(1, min(_SLOTS, vectors)) if isinstance(vectors, int) else 1
        sums = {
            number: Accumulator(self.program.steps[number][0], self.unit, slots, long=self.long)
            for number in sweep.reductions
        }
        kept = {} if self.unrolled else {number: self.scratch_row() for number in sweep.kept}
        fetches = self.far and len(self.plan.sweeps) > 2 and sweep is self.plan.sweeps[-2]

        def at(column: Extent, count: Extent | None, slot: int) -> None:
            self.memo = self.memos.setdefault(column, {}) if isinstance(column, int) and self.unrolled else {}

            def vector(step: int) -> tirx.Expr:
                return self.evaluator.vector(step, column, count, self.memo)

            for number, accumulator in sums.items():
                accumulator.add(vector(self.program.operands(number)[0]), column, count, slot)
            for number, row in kept.items():
                self.unit.store(row, self.segment * self.padded + column, vector(number))
            place = self.line * i64(self.columns) + column
            if fetches and count is None:
                self.prefetch(place, slot)
            values = [vector(self.program.outputs[position][0]) for position in sweep.outputs]
            for position, value in zip(sweep.outputs, values, strict=True):
                self.unit.store(self.outputs[position], place, value, count, streamed=position in self.streamed)

        def end_block() -> None:
            for accumulator in sums.values():
                accumulator.end_block()

        self.each_line(lambda: self.each_vector(at, slots, end_block), end_block)
        for number, accumulator in sums.items():
            self.know(number, self.unit.splat(accumulator.finish()))
        for number, row in kept.items():
            self.recall(number, row)

    def prefetch(self, place: tirx.Expr, slot: int) -> None:
        """Emit prefetches of the next row's part, and of what the last sweep stores here.

        The last sweep waits for memory, the one before it computes: this makes memory work meanwhile.
        """
        reads = [self.evaluator.arguments[self.program.steps[load][1]] for load in self.evaluator.whole_loads()]
        writes = [self.outputs[position] for position in self.plan.sweeps[-1].outputs if position not in self.streamed]
        for buffers, verb, offset in ((reads, "prefetch", i64(self.columns)), (writes, "prefetch_to_write", i64(0))):
            for buffer in buffers:
                line_bytes = self.unit.lanes * tvm.DataType(str(buffer.dtype)).bits // 8
                if slot % max(1, _CACHE_LINE // line_bytes) == 0:
                    T.evaluate(tirx.call_extern("void", f"autocast_{verb}", T.address_of(buffer[place + offset])))

    @property
    def padded(self) -> Extent:
        """Elements of scratch for a line: vectors are stored whole, and one may be read from any column on."""
        return (self.columns // self.unit.lanes + 2) * self.unit.lanes

    def scratch_row(self) -> tirx.Buffer:
        """Memory for one value of each element of a row."""
        return self.unit.scratch(self.segments * self.padded, "float32")

    def each_line(self, body: Callable[[], None], end_block: Callable[[], None]) -> None:
        """`body()` for each line of the row; `end_block()` after as many of them as make a block."""
        if isinstance(self.segments, int) and self.segments == 1:
            body()
            return
        evaluator = self.evaluator
        outside = self.line, evaluator.places, evaluator.scalars
        together = max(1, _BLOCK // self.columns) if isinstance(self.columns, int) else 1
        with T.serial(0, i64(self.segments)) as segment:
            self.segment, self.line = segment, T.bind(self.line + segment)
            evaluator.at(self.line)
            body()
            if self.long:
                with T.If((segment + 1) % together == 0), T.Then():
                    end_block()
        self.segment, (self.line, evaluator.places, evaluator.scalars) = 0, outside

    def each_vector(
        self, body: Callable[[Extent, Extent | None, int], None], slots: int, end_block: Callable[[], None]
    ) -> None:
        """`body(column, count, slot)` for each vector of a line; a count is given for the last, incomplete one."""
        lanes, columns = self.unit.lanes, self.columns
        vectors = columns // lanes
        if not isinstance(columns, int):
            self.each_turn(vectors, _BLOCK // lanes, lambda j: body(j * lanes, None, 0), end_block)
            body(vectors * lanes, columns % lanes, 0)
            return
        rolled = 0 if self.unrolled else vectors // slots

        def turn(j: Extent) -> None:
            for slot in range(slots):
                body((j * slots + slot) * lanes, None, slot)

        if rolled > 1:
            self.each_turn(rolled, _BLOCK // (lanes * slots), turn, end_block)
        for j in range(rolled * slots if rolled > 1 else 0, vectors):
            body(j * lanes, None, j % slots)
        if columns % lanes:
            body(vectors * lanes, columns % lanes, vectors % slots)

    def each_turn(
        self, turns: Extent, together: int, body: Callable[[Extent], None], end_block: Callable[[], None]
    ) -> None:
        """`body(j)` for each of `turns`; `end_block()` after `together` of them, where there are more."""
        if isinstance(turns, int) and turns <= 2 * together:
            with T.serial(0, i64(turns)) as j:
                body(j)
            return
        with T.serial(0, i64(ceil_div(turns, together))) as block:
            first = T.bind(block * together)
            last = T.bind(minimum(first + together, turns))
            with T.serial(first, last) as j:
                body(j)
            with T.If(last < turns), T.Then():
                end_block()


def _lane(vector: tirx.Expr) -> tirx.Expr:
    """The first lane of a vector."""
    return tirx.Shuffle([vector], [0])
