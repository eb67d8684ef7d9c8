"""Generate reductions over any axes: columns are combined some rows at a time, rows in chunks, by all cores.

Sums are made of blocks: eight rows, or eight vectors, are added in a tree, a block of some such trees in float32, and
blocks with what rounding lost of them. So the error grows with the size of a block and not with that of the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.rows.reductions import CALLED, SIMPLE, Accumulator, lanes_ir
from autocast.kernels.target import cores, instruction_set
from autocast.kernels.vector import llvm_ir, vector_math
from autocast.kernels.vector.program import Evaluator, Program, Sizes, declare
from autocast.kernels.vector.unit import Extent, VectorUnit, ceil_div, i64, importing, kernel_function, minimum

#: Columns of a strip of sums: it stays in the first cache beside the rows that are added to it.
_STRIP = 1024

#: Rows that are added before their sum goes to the strip; a program of many steps takes fewer at a time.
_ROWS = 8

#: Rows of a block of columns, and elements of a chunk of a row.
_BLOCK = 128
_CHUNK = 8192

#: Vectors of a row that are added independently.
_SLOTS = 8

#: Elements of the least work that is worth waking other cores, and how many parts each core should find.
_PARALLEL_ELEMENTS = 1 << 16
_PARTS_PER_CORE = 4


@dataclass(frozen=True)
class Reduce:
    """What a kernel reduces.

    Attributes
    ----------
    program
        Computes the tensors that are reduced, as its outputs' steps; the outputs' shapes and dtypes are the results'.
    axes
        The dimensions of the program's space that are reduced.
    function
        One of `rows.reductions.SIMPLE`.
    mean
        Whether results are divided by the number of elements that make them up.
    moments
        Whether the results are mean and variance of the program's first argument x, and the tensors that are reduced
        x - s and (x - s)², where s is x's first line. Only dimensions before the kept ones are reduced.
    """

    program: Program
    axes: tuple[int, ...]
    function: str
    mean: bool = False
    moments: bool = False

    @property
    def reduces_last(self) -> bool:
        """Whether the last dimension is reduced."""
        return len(self.program.space) - 1 in self.axes

    @property
    def tail(self) -> int:
        """How many of the last dimensions are all reduced, or all kept."""
        alike = [(axis in self.axes) == self.reduces_last for axis in reversed(range(len(self.program.space)))]
        return alike.index(False) if False in alike else len(alike)


def reduce(spec: Reduce, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(*arguments, *results)` that computes `spec` on `target`."""
    unit = VectorUnit(instruction_set(target))
    functions = {step[0] for step in spec.program.steps} & set(vector_math.FUNCTIONS) | set(
        CALLED.get(spec.function, ())
    )
    code = vector_math.math_ir(unit.lanes, tuple(sorted(functions))) + llvm_ir.conversions_and_accesses(unit.isa)
    with kernel_function(name) as finished:
        sizes = Sizes()
        arguments, outs = declare(spec.program, sizes)
        with importing(code + lanes_ir(unit.lanes)):
            evaluator = Evaluator(spec.program, unit, sizes, arguments, row_dims=spec.tail)
            kind = _Rows if spec.reduces_last else _Columns
            kind(spec, evaluator, sizes, outs, cores(target)).emit()
    return finished()


class _Generator:
    """What both forms share: lines, along the last dimensions, of which each is one of the kept or the reduced ones."""

    def __init__(self, spec: Reduce, evaluator: Evaluator, sizes: Sizes, outs: list[tirx.Buffer], threads: int) -> None:
        self.spec, self.evaluator, self.unit, self.outs, self.threads = spec, evaluator, evaluator.unit, outs, threads
        self.reduction = SIMPLE[spec.function]
        self.steps = [step for step, _, _ in spec.program.outputs]
        space = spec.program.space
        #: Extents of the dimensions that lines are made of, and whether each is reduced.
        groups = [
            (math.prod((sizes.extent(space[i]) for i in dims), start=1), reduced)
            for reduced, dims in groupby(range(len(space) - spec.tail), lambda i: i in spec.axes)
        ]
        if not isinstance(evaluator.segments, int) or evaluator.segments > 1:
            groups.append((evaluator.segments, spec.reduces_last))
        kept = math.prod((extent for extent, reduced in groups if not reduced), start=1)
        reduced = math.prod((extent for extent, reduced in groups if reduced), start=1)
        #: How many results there are, as buffers may be sized.
        self.results = kept if spec.reduces_last else kept * evaluator.columns
        self.kept, self.reduced, self.columns = (self.unit.opaque(e) for e in (kept, reduced, evaluator.columns))
        self.groups: list[tuple[Extent, bool]] = [(self.unit.opaque(extent), reduced) for extent, reduced in groups]
        self.elements = self.kept * self.reduced * self.columns

    def line(self, number: Any, reduced: bool) -> Any:
        """What the `number`-th place along the kept, or along the reduced dimensions adds to the number of a line."""
        place: Any = 0
        below: Any = 1
        left = sum(is_reduced == reduced for _, is_reduced in self.groups)
        for extent, is_reduced in reversed(self.groups):
            if is_reduced == reduced:
                left -= 1
                step = number % i64(extent) if left else number
                place = place + step * i64(below)
                number = number // i64(extent) if left else number
            below = below * extent
        return place

    def parts(self, tasks: Extent, units: Extent) -> int:
        """In how many parts to cut each of `tasks` reductions over `units`, so that all cores have some."""
        small = isinstance(self.elements, int) and self.elements < _PARALLEL_ELEMENTS
        if small or not isinstance(tasks, int) or tasks >= 2 * self.threads:
            return 1
        wanted = -(-_PARTS_PER_CORE * self.threads // tasks)
        return min(wanted, units) if isinstance(units, int) else wanted

    def loop(self, count: Extent) -> Any:
        serial = isinstance(self.elements, int) and self.elements < _PARALLEL_ELEMENTS
        return (T.serial if serial else T.parallel)(0, i64(count))

    def store(self, place: Any, vectors: list[tirx.Expr], left: Any) -> None:
        """Emit that results are stored, from a vector of each combined tensor."""
        if self.spec.mean or self.spec.moments:
            count = self.reduced * (self.columns if isinstance(self, _Rows) else 1)
            divisor = float(count) if isinstance(count, int) else i64(count).astype("float32")
            vectors = [vector / self.unit.splat(divisor) for vector in vectors]
        if self.spec.moments:
            offset = T.bind(vectors[0])
            first_line = self.unit.load(self.evaluator.arguments[0], place, left)
            variance = T.bind(vectors[1] - offset * offset)
            zero = self.unit.splat(0.0)
            vectors = [first_line + offset, tirx.Select(variance < zero, zero, variance)]
        for out, vector in zip(self.outs, vectors, strict=True):
            self.unit.store(out, place, vector, left)

    def combined(self, shares: list[tirx.Buffer], parts: int) -> None:
        """Emit that the `parts` rows of each result's partial ones become that result."""
        lanes, unit = self.unit.lanes, self.unit
        totals = [T.alloc_buffer((lanes,), "float32", scope="local") for _ in shares]
        here = unit.ramp(0)
        results = unit.opaque(self.results)

        def vector(place: Any, count: Any) -> None:
            for total in totals:
                T.buffer_store(total, unit.splat(self.reduction.neutral), [here])
            with T.serial(0, i64(parts)) as part:
                for total, share in zip(totals, shares, strict=True):
                    value = unit.load(share, part * i64(results) + place, count)
                    T.buffer_store(total, self.reduction.combine(total[here], value), [here])
            self.store(place, [total[here] for total in totals], count)

        self.sweep(results, vector)

    def sweep(self, count: Any, body: Callable[[Any, Any], None]) -> None:
        """`body(place, None or the number of elements that are left)` for each vector of some elements."""
        lanes = self.unit.lanes
        if not isinstance(count, int) or count >= lanes:
            with T.serial(0, i64(count // lanes)) as block:
                body(block * lanes, None)
        if isinstance(count, int):
            if count % lanes:
                body(i64(count // lanes * lanes), i64(count % lanes))
            return
        left = T.bind(i64(count % lanes))
        with T.If(left > 0), T.Then():
            body(count - left, left)

    def corrected(self, total: tirx.Expr, lost: tirx.Expr) -> tirx.Expr:
        """A total with what rounding lost; that is not a number where the total is infinite."""
        total, lost = T.bind(total), T.bind(lost)
        infinity = tirx.const(float("inf"), "float32")
        bound = infinity if str(lost.ty.dtype) == "float32" else self.unit.splat(infinity)
        return tirx.Select(tirx.abs(lost) < bound, total + lost, total)

    def fold(self, total: tirx.Buffer, lost: tirx.Buffer, at: list, value: tirx.Expr) -> None:
        """Add a value to a total, and what rounding loses by that to `lost`."""
        value, before = T.bind(value), T.bind(total[at[0]])
        after = T.bind(before + value)
        taken = T.bind(after - before)
        T.buffer_store(lost, lost[at[0]] + ((before - (after - taken)) + (value - taken)), at)
        T.buffer_store(total, after, at)


class _Columns(_Generator):
    """The last dimension is kept: rows are added to a strip of sums."""

    def emit(self) -> None:
        """Emit the kernel's loops."""
        width = minimum(self.columns, _STRIP)
        strips = ceil_div(self.columns, _STRIP)
        parts = self.parts(self.kept * strips, ceil_div(self.reduced, _BLOCK))
        single = parts == 1
        shares = [] if single else [self.unit.scratch(parts * self.results, "float32") for _ in self.outs]
        with self.loop(self.kept * strips * parts) as task:
            rest, part = task // i64(parts), task % i64(parts)
            kept, strip = T.bind(rest // i64(strips)), rest % i64(strips)
            first = T.bind(strip * _STRIP)
            count = (
                width
                if isinstance(strips, int) and self.columns % width == 0
                else T.bind(minimum(self.columns - first, _STRIP))
            )
            begin = 0 if single else T.bind(part * i64(self.reduced) // i64(parts))
            end = self.reduced if single else T.bind((part + 1) * i64(self.reduced) // i64(parts))
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
        blocks = [self.strip(size, self.reduction.neutral, count) for _ in self.steps]
        rows = end - begin
        in_blocks = self.spec.function == "row_sum" and not (isinstance(rows, int) and rows <= 2 * _BLOCK)
        if not in_blocks:
            self.add_rows(blocks, base, first, count, begin, end)
            return [partial(unit.load, block) for block in blocks]
        totals = [(self.strip(size, 0.0, count), self.strip(size, 0.0, count)) for _ in blocks]
        with T.serial(0, i64(ceil_div(rows, _BLOCK))) as number:
            start = T.bind(begin + number * _BLOCK)
            self.add_rows(blocks, base, first, count, start, T.bind(minimum(end, start + _BLOCK)))

            def fold(column: Any, left: Any) -> None:
                at = [unit.ramp(column)]
                for block, (total, lost) in zip(blocks, totals, strict=True):
                    self.fold(total, lost, at, unit.load(block, column))
                    T.buffer_store(block, unit.splat(0.0), at)

            self.sweep(count, fold)

        def corrected(total: tirx.Buffer, lost: tirx.Buffer, column: Any) -> tirx.Expr:
            return self.corrected(unit.load(total, column), unit.load(lost, column))

        return [partial(corrected, total, lost) for total, lost in totals]

    def prefetch(self, column: Any, lines: int) -> None:
        """Fetch what is read at a column some lines further on: the hardware does not see that far in short rows."""
        for load, place in self.evaluator.places.items():
            argument = self.evaluator.arguments[self.evaluator.program.steps[load][1]]
            self.unit.prefetch(argument, place + column + lines * i64(self.columns))

    def strip(self, size: int, value: float, count: Any) -> tirx.Buffer:
        buffer = self.unit.scratch(size, "float32")
        self.sweep(count, lambda column, _: T.buffer_store(buffer, self.unit.splat(value), [self.unit.ramp(column)]))
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


class _Rows(_Generator):
    """The last dimension is reduced: chunks of lines become single numbers."""

    def emit(self) -> None:
        """Emit the kernel's loops."""
        chunks = ceil_div(self.columns, _CHUNK)
        units = self.reduced * chunks
        parts = self.parts(self.kept, units)
        single = parts == 1
        size = parts * self.results + self.unit.lanes
        shares = [] if single else [self.unit.scratch(size, "float32") for _ in self.outs]
        with self.loop(self.kept * parts) as task:
            kept, part = T.bind(task // i64(parts)), task % i64(parts)
            base = T.bind(i64(self.line(kept, False)))
            totals = [[T.alloc_buffer((1,), "float32", scope="local") for _ in range(2)] for _ in self.outs]
            for total, lost in totals:
                T.buffer_store(total, tirx.const(self.reduction.neutral, "float32"), [0])
                T.buffer_store(lost, tirx.const(0.0, "float32"), [0])
            begin = 0 if single else part * i64(units) // i64(parts)
            end = units if single else (part + 1) * i64(units) // i64(parts)
            with T.serial(T.bind(i64(begin)), T.bind(i64(end))) as number:
                self.evaluator.at(T.bind(base + self.line(number // i64(chunks), True)))
                first = T.bind(number % i64(chunks) * _CHUNK)
                length = (
                    self.columns
                    if isinstance(chunks, int) and chunks == 1
                    else T.bind(minimum(self.columns - first, _CHUNK))
                )
                for (total, lost), value in zip(totals, self.chunk(first, length), strict=True):
                    if self.spec.function == "row_sum":
                        self.fold(total, lost, [0], value)
                    else:
                        T.buffer_store(total, self.scalar(total[0], value), [0])
            values = [T.bind(self.corrected(total[0], lost[0])) for total, lost in totals]
            if single:
                self.store(kept, [self.unit.splat(value) for value in values], 1)
            for share, value in zip(shares, values, strict=False):
                T.buffer_store(share, value, [part * i64(self.kept) + kept])
        if shares:
            self.combined(shares, parts)

    def scalar(self, a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        """Two numbers, combined."""
        vector = T.bind(self.reduction.combine(self.unit.splat(a), self.unit.splat(b)))
        return (
            tirx.call_pure_extern("float32", self.reduction.lanes, vector)
            if self.spec.function != "row_product"
            else a * b
        )

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
