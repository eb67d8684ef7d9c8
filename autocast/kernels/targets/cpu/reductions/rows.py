"""Generate reductions of the last dimension: chunks of lines become single numbers."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import ceil_div, i64, minimum, quotient, remainder
from autocast.kernels.targets.cpu.reductions.generator import Generator
from autocast.kernels.targets.cpu.rows.reductions import Accumulator
from autocast.kernels.targets.cpu.vector.long_sums import add_block, corrected

#: Elements of a chunk of a line, whose sum is in float32 alone.
_CHUNK = 8192

#: Vectors of a line that are added independently.
_SLOTS = 8


class Rows(Generator):
    """The last dimension is reduced: chunks of lines become single numbers."""

    def emit(self) -> None:
        """Emit the kernel's loops."""
        lanes, here = self.unit.lanes, self.unit.ramp(0)
        chunks = ceil_div(self.columns, _CHUNK)
        units = self.reduced * chunks
        parts = self.parts(self.kept, units)
        single = parts == 1
        size = parts * self.results + lanes
        shares = [] if single else [self.unit.scratch(size, "float32") for _ in self.outs]
        with self.loop(self.kept * parts) as task:
            kept, part = T.bind(quotient(task, parts)), remainder(task, parts)
            base = T.bind(i64(self.line(kept, False)))
            # Numbers as vectors of equal lanes.
            totals = [[T.alloc_buffer((lanes,), "float32", scope="local") for _ in range(2)] for _ in self.outs]
            for total, lost in totals:
                T.buffer_store(total, self.unit.splat(self.reduction.neutral), [here])
                T.buffer_store(lost, self.unit.splat(0.0), [here])
            begin = 0 if single else quotient(part * i64(units), parts)
            end = units if single else quotient((part + 1) * i64(units), parts)
            with T.serial(T.bind(i64(begin)), T.bind(i64(end))) as number:
                self.evaluator.at(T.bind(base + self.line(quotient(number, chunks), True)))
                first = T.bind(remainder(number, chunks) * _CHUNK)
                length = (
                    self.columns
                    if isinstance(chunks, int) and chunks == 1
                    else T.bind(minimum(self.columns - first, _CHUNK))
                )
                for (total, lost), value in zip(totals, self.chunk(first, length), strict=True):
                    if self.spec.function == "row_sum":
                        add_block(self.unit, total, lost, here, self.unit.splat(value))
                    else:
                        combined = self.reduction.combine(total[here], self.unit.splat(value))
                        T.buffer_store(total, combined, [here])
            values = [T.bind(corrected(self.unit, total[here], lost[here])) for total, lost in totals]
            if single:
                self.store(kept, values, 1)
            for share, value in zip(shares, values, strict=False):
                self.unit.store(share, part * i64(self.kept) + kept, value, 1)
        if shares:
            self.combined(shares, parts)

    def chunk(self, first: Any, length: Any) -> list[tirx.Expr]:
        """Emit the reductions of `length` elements of a line, from column `first` on."""
        lanes = self.unit.lanes
        slots = _SLOTS if not isinstance(length, int) else max(1, min(_SLOTS, length // lanes))
        accumulators = [Accumulator(self.spec.function, self.unit, slots) for _ in self.steps]

        def add(column: Any, count: Any, slot: int) -> None:
            memo: dict[int, tirx.Expr] = {}
            for step, accumulator in zip(self.steps, accumulators, strict=True):
                vector = self.evaluator.vector(step, first + column, count, memo)
                accumulator.add(vector, first + column, count, slot)

        step = slots * lanes
        if not isinstance(length, int) or length >= step:
            with T.serial(0, i64(length // step)) as turn:
                for slot in range(slots):
                    add(turn * step + slot * lanes, None, slot)
        if not isinstance(length, int) or length % step >= lanes:
            with T.serial(i64(length // step * slots), i64(length // lanes)) as turn:
                add(turn * lanes, None, 0)
        if isinstance(length, int):
            if length % lanes:
                add(i64(length // lanes * lanes), i64(length % lanes), 0)
        else:
            left = T.bind(i64(length % lanes))
            with T.If(left > 0), T.Then():
                add(length - left, left, 0)
        return [accumulator.finish() for accumulator in accumulators]
