"""What both forms of reductions share: lines, how work is cut into tasks, sums that keep what rounding lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import groupby
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64, quotient, remainder
from autocast.kernels.specs.reductions import Reduce
from autocast.kernels.targets.cpu.rows.reductions import SIMPLE
from autocast.kernels.targets.cpu.vector.evaluator import Evaluator, Sizes

#: Elements of the least work that is worth waking other cores, and how many parts each core should find.
_PARALLEL_ELEMENTS = 1 << 16
_PARTS_PER_CORE = 4

#: Lines whose mean is subtracted from all others before they are squared.
_SHIFT_LINES = 8


class Generator:
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
                step = remainder(number, extent) if left else number
                place = place + step * i64(below)
                number = quotient(number, extent) if left else number
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
            count = self.reduced * (self.columns if self.spec.reduces_last else 1)
            divisor = float(count) if isinstance(count, int) else i64(count).astype("float32")
            vectors = [vector / self.unit.splat(divisor) for vector in vectors]
        if self.spec.moments:
            # Quotients by extents are kept from TVM's analysis of bound numbers, which fails at those of floats.
            offset, square = (T.bind(self.unit.once(vector)) for vector in vectors)
            zero, infinity = self.unit.splat(0.0), self.unit.splat(math.inf)
            variance = T.bind(square - offset * offset)
            # What is too large to be squared still is finite; an infinite element has no variance.
            overflows = tirx.all(square == infinity, tirx.abs(offset) < infinity)
            variance = tirx.Select(variance < zero, zero, tirx.Select(overflows, infinity, variance))
            vectors = [self.shift(place, left) + offset, variance]
        for out, vector in zip(self.outs, vectors, strict=True):
            self.unit.store(out, place, vector, left)

    def shift(self, column: Any, left: Any) -> tirx.Expr:
        """The mean of some lines, far from each other: about what a column's elements are around; 0 if not finite."""
        data, share = self.evaluator.arguments[0], self.unit.splat(1 / _SHIFT_LINES)
        mean: tirx.Expr = self.unit.splat(0.0)
        for i in range(_SHIFT_LINES):
            line = self.line(i64(self.reduced) * i // _SHIFT_LINES, True)
            mean = self.unit.multiply_add(self.unit.load(data, line * i64(self.columns) + column, left), share, mean)
        mean = T.bind(self.unit.once(mean))
        return tirx.Select(tirx.abs(mean) < self.unit.splat(math.inf), mean, self.unit.splat(0.0))

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
