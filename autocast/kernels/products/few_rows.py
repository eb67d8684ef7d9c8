"""Products of a few rows: an element of B is used a few times only, so B is streamed from memory and never packed."""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.products.blocking import Blocking
from autocast.kernels.products.pack import Source
from autocast.kernels.products.panels import Task
from autocast.kernels.products.tile import Sums, finish_rows
from autocast.kernels.vector.unit import VectorUnit, i64


class FewRows:
    """Emits the code of one task that owns all `rows` rows of A and some panels of the output's columns."""

    def __init__(self, unit: VectorUnit, blocking: Blocking, task: Task) -> None:
        self.unit, self.task = unit, task
        self.rows, self.panel = blocking.tile_rows, blocking.panel
        self.vectors = blocking.tile_vectors

    def emit(self) -> None:
        """All panels of the task, one after the other."""
        task, unit = self.task, self.unit
        wide_a = None if task.b.along_k else self._widened_a()
        with T.serial(task.first_panel, task.last_panel) as panel:
            column = T.bind(panel * self.panel)
            sums = Sums(unit.scratch(self.rows * self.panel, "float32"), 0, self.panel)
            if wide_a is None:
                self._dot_columns(column, sums)
            else:
                self._add_rows(column, sums, wide_a)
            finish_rows(unit, task.output, sums, self.rows, 0, column)

    def _accumulators(self, width: int) -> list[tirx.Buffer]:
        """Zeroed sums for each row of A, small enough for the stack and so for registers."""
        buffers = [T.alloc_buffer((width * self.unit.lanes,), "float32") for _ in range(self.rows)]
        for buffer in buffers:
            for vector in range(width):
                T.buffer_store(buffer, self.unit.splat(0.0), [self._at(vector)])
        return buffers

    def _at(self, vector: int) -> tirx.Expr:
        return T.ramp(vector * self.unit.lanes, 1, self.unit.lanes)

    def _dot_columns(self, column: tirx.Expr, sums: Sums) -> None:
        """B's stored rows run along k, as A's: dot products of `vectors` of B's rows at a time with all of A's."""
        a, b, unit, together = self.task.a, self.task.b, self.unit, self.vectors
        step_size = unit.lanes * a.per_word

        def step(k: tirx.Expr, starts: list[tirx.Expr], totals: list[tirx.Buffer], part: bool) -> None:
            count = T.bind(i64(a.k) - k) if part else None
            columns = [T.bind(self._words(b, start + k, count)) for start in starts]
            for row, total in enumerate(totals):
                words = T.bind(self._words(a, a.base + row * a.stride + k, count))
                for j, other in enumerate(columns):
                    at = self._at(j)
                    multiply = unit.dot_pairs if a.pairs else unit.multiply_add
                    T.buffer_store(total, multiply(words, other, total[at]), [at])

        with T.serial(0, i64(self.panel // together)) as group:
            # Beyond the last column the last one is computed again, and not stored.
            ends = [tirx.min(column + group * together + j, i64(b.columns) - 1) for j in range(together)]
            starts = [T.bind(b.base + end * b.stride) for end in ends]
            totals = self._accumulators(together)
            whole = i64(a.k) // step_size
            with T.serial(0, whole) as k:
                step(T.bind(k * step_size), starts, totals, part=False)
            if not (isinstance(a.k, int) and a.k % step_size == 0):
                step(T.bind(whole * step_size), starts, totals, part=True)
            for row, total in enumerate(totals):
                for j in range(together):
                    value = tirx.call_pure_extern("float32", "autocast_sum", total[self._at(j)])
                    T.buffer_store(sums.buffer, value, [row * self.panel + group * together + j])

    def _words(self, source: Source, index: tirx.Expr, count: tirx.Expr | None) -> tirx.Expr:
        """A vector of words along k: pairs of bfloat16, or float32 numbers; zero from the `count`-th element on."""
        if not source.pairs:
            return self.unit.load(source.view, index, count)
        pointer = T.address_of(source.view[index])
        dtype, name = f"int32x{self.unit.lanes}", source.snippet("words", part=count is not None)
        if count is None:
            return tirx.call_extern(dtype, name, pointer)
        return tirx.call_extern(dtype, name, pointer, tirx.min(count, i64(1 << 30)).astype("int32"))

    def _widened_a(self) -> tirx.Buffer:
        """A as float32, from which single elements are broadcast."""
        a, unit = self.task.a, self.unit
        wide = unit.scratch(self.rows * i64(a.k), "float32")
        for row in range(self.rows):
            start = T.bind(a.base + row * a.stride)
            with T.serial(0, (i64(a.k) + unit.lanes - 1) // unit.lanes) as block:
                k = T.bind(block * unit.lanes)
                count = T.bind(i64(a.k) - k)
                unit.store(wide, row * i64(a.k) + k, unit.load(a.view, start + k, count), count)
        return wide

    def _add_rows(self, column: tirx.Expr, sums: Sums, wide_a: tirx.Buffer) -> None:
        """B's stored rows run along the columns: add a multiple of each to the sums."""
        b, unit = self.task.b, self.unit

        def add(part: bool) -> None:
            totals = self._accumulators(self.vectors)
            with T.serial(0, i64(b.k)) as k:
                start = T.bind(b.base + k * b.stride + column)
                row_of_b = []
                for vector in range(self.vectors):
                    skip = vector * unit.lanes
                    count = i64(b.columns) - column - skip if part else None
                    row_of_b.append(T.bind(unit.load(b.view, start + skip, count)))
                for row, total in enumerate(totals):
                    factor = T.bind(unit.splat(wide_a[row * i64(b.k) + k]))
                    for vector, other in enumerate(row_of_b):
                        at = self._at(vector)
                        T.buffer_store(total, unit.multiply_add(factor, other, total[at]), [at])
            for row, total in enumerate(totals):
                for vector in range(self.vectors):
                    start = unit.ramp(row * self.panel + vector * unit.lanes)
                    T.buffer_store(sums.buffer, total[self._at(vector)], [start])

        if isinstance(b.columns, int) and b.columns % self.panel == 0:
            add(part=False)
            return
        with T.If(column + self.panel <= i64(b.columns)):
            with T.Then():
                add(part=False)
            with T.Else():
                add(part=True)
