"""Generate reductions that keep the last dimension: rows are added to a strip of sums, several at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import ceil_div, i64, minimum, quotient, remainder
from autocast.kernels.targets.cpu.reductions.generator import Generator
from autocast.kernels.targets.cpu.vector.long_sums import add_block, corrected

#: Columns of a strip of sums: it stays in the first cache beside the rows that are added to it.
_STRIP = 1024

#: Rows that are added before their sum goes to the strip; a program of many steps takes fewer at a time.
_ROWS = 8

#: Rows of a block, whose sum is in float32 alone.
_BLOCK = 128


class Columns(Generator):
    """The last dimension is kept: rows are added to a strip of sums."""

    def emit(self) -> None:
        """Emit the kernel's loops."""
        width = minimum(self.columns, _STRIP)
        strips = ceil_div(self.columns, _STRIP)
        parts = self.parts(self.kept * strips, ceil_div(self.reduced, _BLOCK))
        single = parts == 1
        shares = [] if single else [self.unit.scratch(parts * self.results, "float32") for _ in self.outs]
        with self.loop(self.kept * strips * parts) as task:
            rest, part = quotient(task, parts), remainder(task, parts)
            kept, strip = T.bind(quotient(rest, strips)), remainder(rest, strips)
            first = T.bind(strip * _STRIP)
            count = (
                width
                if isinstance(strips, int) and self.columns % width == 0
                else T.bind(minimum(self.columns - first, _STRIP))
            )
            begin = 0 if single else T.bind(quotient(part * i64(self.reduced), parts))
            end = self.reduced if single else T.bind(quotient((part + 1) * i64(self.reduced), parts))
            strips_of = self.summed(kept, first, count, begin, end)
            place = kept * i64(self.columns) + first

            def store(column: Any, left: Any) -> None:
                vectors = [strip_of(column) for strip_of in strips_of]
                if single:
                    self.store(place + column, vectors, left)
                at = part * i64(self.kept) * i64(self.columns) + place + column
                for share, vector in zip(shares, vectors, strict=False):
                    self.unit.store(share, at, vector, left)

            self.sweep(count, store)
        if shares:
            self.combined(shares, parts)

    def summed(self, kept: Any, first: Any, count: Any, begin: Any, end: Any) -> list[Callable[[Any], tirx.Expr]]:
        """Emit the combinations of lines `begin` to `end` of a strip; what reads each from a column on."""
        unit = self.unit
        size = _STRIP + unit.lanes
        base = T.bind(i64(self.line(kept, False)))
        if self.spec.moments:
            shift = self.strip(size, lambda column, left: self.shift(first + column, left), count)
            load = self.spec.program.steps[self.steps[0]][2]
            self.evaluator.known[load] = lambda column, _: unit.load(shift, column - first)

        def constant(value: float) -> Callable[[Any, Any], tirx.Expr]:
            return lambda column, left: unit.splat(value)

        blocks = [self.strip(size, constant(self.reduction.neutral), count) for _ in self.steps]
        rows = end - begin
        in_blocks = self.spec.function == "row_sum" and not (isinstance(rows, int) and rows <= 2 * _BLOCK)
        if not in_blocks:
            self.add_rows(blocks, base, first, count, begin, end)
            return [partial(unit.load, block) for block in blocks]
        totals = [(self.strip(size, constant(0.0), count), self.strip(size, constant(0.0), count)) for _ in blocks]
        with T.serial(0, i64(ceil_div(rows, _BLOCK))) as number:
            start = T.bind(begin + number * _BLOCK)
            self.add_rows(blocks, base, first, count, start, T.bind(minimum(end, start + _BLOCK)))

            def fold(column: Any, left: Any) -> None:
                at = unit.ramp(column)
                for block, (total, lost) in zip(blocks, totals, strict=True):
                    add_block(unit, total, lost, at, unit.load(block, column))
                    T.buffer_store(block, unit.splat(0.0), [at])

            self.sweep(count, fold)

        def whole(total: tirx.Buffer, lost: tirx.Buffer, column: Any) -> tirx.Expr:
            return corrected(unit, unit.load(total, column), unit.load(lost, column))

        return [partial(whole, total, lost) for total, lost in totals]

    def prefetch(self, column: Any, lines: int) -> None:
        """Fetch what is read at a column some lines further on: the hardware does not see that far in short rows."""
        for load, place in self.evaluator.places.items():
            argument = self.evaluator.arguments[self.evaluator.program.steps[load][1]]
            self.unit.prefetch(argument, place + column + lines * i64(self.columns))

    def strip(self, size: int, value: Callable[[Any, Any], tirx.Expr], count: Any) -> tirx.Buffer:
        """A strip of what `value` gives at a column, with the number of columns that are left."""
        buffer = self.unit.scratch(size, "float32")

        def store(column: Any, left: Any) -> None:
            T.buffer_store(buffer, value(column, left), [self.unit.ramp(column)])

        self.sweep(count, store)
        return buffer

    def add_rows(self, strips: list[tirx.Buffer], base: Any, first: Any, count: Any, begin: Any, end: Any) -> None:
        """Emit that lines are combined with strips, several at a time."""
        many = max(1, _ROWS // max(1, len(self.spec.program.steps) // 2))
        rows = end - begin

        def add(start: Any, lines: int) -> None:
            places = []
            for i in range(lines):
                self.evaluator.at(T.bind(base + self.line(i64(start) + i, True)))
                places.append((self.evaluator.places, self.evaluator.scalars))

            def column(column: Any, left: Any) -> None:
                by_strip = [[strip[self.unit.ramp(column)]] for strip in strips]
                for self.evaluator.places, self.evaluator.scalars in places:
                    self.prefetch(first + column, lines)
                    memo: dict[int, tirx.Expr] = {}
                    for step, values in zip(self.steps, by_strip, strict=True):
                        values.append(self.evaluator.vector(step, first + column, left, memo))
                for strip, values in zip(strips, by_strip, strict=True):
                    while len(values) > 1:
                        pairs = zip(values[::2], values[1::2], strict=False)
                        values = [self.reduction.combine(a, b) for a, b in pairs] + values[len(values) // 2 * 2 :]
                    T.buffer_store(strip, values[0], [self.unit.ramp(column)])

            self.sweep(count, column)

        if not isinstance(rows, int) or rows >= many:
            with T.serial(0, i64(rows // many)) as group:
                add(T.bind(begin + group * many), many)
        if many > 1 and not (isinstance(rows, int) and rows % many == 0):
            with T.serial(0, i64(rows % many)) as row:
                add(T.bind(begin + rows // many * many + row), 1)
