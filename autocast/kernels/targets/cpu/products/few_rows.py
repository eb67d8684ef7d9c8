"""Products of a few rows: an element of B is used a few times only, so B is streamed from memory and never packed."""

from __future__ import annotations

import math

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import ceil_div, i64, minimum
from autocast.kernels.targets.cpu.products.blocking import Blocking
from autocast.kernels.targets.cpu.products.pack import Source
from autocast.kernels.targets.cpu.products.panels import Task
from autocast.kernels.targets.cpu.products.tile import Sums, Tile, finish_rows
from autocast.kernels.targets.cpu.vector.unit import VectorUnit

#: How far ahead of its use a row of B is fetched: hardware does not follow such steps, nor across pages.
_ROWS_AHEAD = 12

#: Products of a sum that is in registers all the time: the error of a longer one would grow with its length.
_BLOCK = 512


class FewRows:
    """Emits the code of one task that owns all rows of A, a few at a time, and some panels of the output's columns."""

    def __init__(self, unit: VectorUnit, blocking: Blocking, task: Task) -> None:
        self.unit, self.task = unit, task
        self.rows, self.panel = blocking.tile_rows, blocking.panel
        self.vectors = blocking.tile_vectors

    def emit(self) -> None:
        """All panels of the task, one after the other."""
        task, unit = self.task, self.unit
        wide_a = None if task.b.along_k else self._widened_a()
        tiles = math.ceil(task.a.columns / self.rows)
        with T.serial(task.first_panel, task.last_panel) as panel, T.serial(0, i64(tiles)) as tile:
            column = T.bind(panel * self.panel)
            # The last tile begins early enough to be whole: its first rows are then computed twice.
            row = T.bind(tirx.min(tile * self.rows, i64(task.a.columns - self.rows)))
            sums = Sums(unit.scratch(self.rows * self.panel, "float32"), 0, self.panel)
            if wide_a is None:
                self._dot_columns(row, column, sums, tile, tiles)
            else:
                self._add_rows(row, column, sums, wide_a)
            finish_rows(unit, task.output, sums, self.rows, row, column)

    def _dot_columns(self, row: tirx.Expr, column: tirx.Expr, sums: Sums, tile: tirx.Expr, tiles: int) -> None:
        """B's stored rows run along k, as A's: dot products of `vectors` of B's rows at a time with a tile of A's."""
        a, b, unit, together = self.task.a, self.task.b, self.unit, self.vectors
        step_size = unit.lanes * a.per_word
        multiply = unit.dot_pairs if a.pairs else unit.multiply_add

        def step(k: tirx.Expr, starts: list[tirx.Expr], totals: Tile, part: bool) -> None:
            count = T.bind(i64(a.k) - k) if part else None
            columns = [T.bind(self._words(b, start + k, count)) for start in starts]
            if not part:
                for j in range(share):
                    unit.prefetch(b.view, ahead + k * share + j * step_size)
            for r in range(self.rows):
                words = T.bind(self._words(a, a.base + (row + r) * a.stride + k, count))
                for j, other in enumerate(columns):
                    totals[r, j] = multiply(words, other, totals[r, j])

        with T.serial(0, i64(self.panel // together)) as group:
            # Beyond the last column the last one is computed again, and not stored.
            ends = [tirx.min(column + group * together + j, i64(b.columns) - 1) for j in range(together)]
            starts = [T.bind(b.base + end * b.stride) for end in ends]
            # B lies in memory row after row. Every tile fetches its share of what the next panel reads here.
            share = math.ceil(together / tiles)
            next_row = column + (self.panel if tiles > 1 else together) + group * together + tile * share
            ahead = T.bind(b.base + next_row * b.stride)
            totals = Tile(unit, self.rows, together * unit.lanes)
            unit.fence(sums.buffer)
            totals.clear()
            whole = i64(a.k) // step_size
            with T.serial(0, whole) as k:
                step(T.bind(k * step_size), starts, totals, part=False)
            if not (isinstance(a.k, int) and a.k % step_size == 0):
                step(T.bind(whole * step_size), starts, totals, part=True)
            for r in range(self.rows):
                for j in range(together):
                    value = tirx.call_pure_extern("float32", "autocast_sum", totals[r, j])
                    T.buffer_store(sums.buffer, value, [r * self.panel + group * together + j])

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
        wide = unit.scratch(a.columns * i64(a.k), "float32")
        with T.serial(0, i64(a.columns)) as row, T.serial(0, (i64(a.k) + unit.lanes - 1) // unit.lanes) as block:
            k = T.bind(block * unit.lanes)
            count = T.bind(i64(a.k) - k)
            unit.store(wide, row * i64(a.k) + k, unit.load(a.view, a.base + row * a.stride + k, count), count)
        return wide

    def _add_rows(self, row: tirx.Expr, column: tirx.Expr, sums: Sums, wide_a: tirx.Buffer) -> None:
        """B's stored rows run along the columns: add a multiple of each to the sums."""
        b, unit = self.task.b, self.unit
        per_line = 64 // tvm.DataType(str(b.view.dtype)).itemsize

        def add(part: bool) -> None:
            if not (isinstance(b.k, int) and b.k <= 2 * _BLOCK):
                T.evaluate(tirx.call_extern("void", "memset", sums.buffer.data, 0, self.rows * self.panel * 4))
                with T.serial(0, i64(ceil_div(b.k, _BLOCK))) as block:
                    first = T.bind(block * _BLOCK)
                    add_block(part, first, T.bind(minimum(first + _BLOCK, b.k)), others=True)
                return
            add_block(part, i64(0), i64(b.k), others=False)

        def add_block(part: bool, begin: tirx.Expr, end: tirx.Expr, *, others: bool) -> None:
            totals = Tile(unit, self.rows, self.panel)
            unit.fence(sums.buffer)
            totals.clear()
            with T.serial(begin, end) as k:
                start = T.bind(b.base + k * b.stride + column)
                row_of_b = []
                for skip in range(0, self.panel, unit.lanes):
                    count = i64(b.columns) - column - skip if part else None
                    row_of_b.append(T.bind(unit.load(b.view, start + skip, count)))
                for skip in range(0, self.panel, per_line):
                    unit.prefetch(b.view, start + _ROWS_AHEAD * b.stride + skip)
                for r in range(self.rows):
                    factor = T.bind(unit.splat(wide_a[(row + r) * i64(b.k) + k]))
                    for vector, other in enumerate(row_of_b):
                        totals[r, vector] = unit.multiply_add(factor, other, totals[r, vector])
            if others:
                totals.add(sums)
            totals.store(sums)

        if isinstance(b.columns, int) and b.columns % self.panel == 0:
            add(part=False)
            return
        with T.If(column + self.panel <= i64(b.columns)):
            with T.Then():
                add(part=False)
            with T.Else():
                add(part=True)
