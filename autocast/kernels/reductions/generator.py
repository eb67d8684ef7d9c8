"""What both forms of reductions share: lines, how work is cut into tasks, sums that keep what rounding lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import groupby
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.reductions.spec import Reduce
from autocast.kernels.rows.reductions import SIMPLE
from autocast.kernels.vector.program import Evaluator, Sizes
from autocast.kernels.vector.unit import Extent, i64

#: Elements of the least work that is worth waking other cores, and how many parts each core should find.
_PARALLEL_ELEMENTS = 1 << 16
_PARTS_PER_CORE = 4


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
            count = self.reduced * (self.columns if self.spec.reduces_last else 1)
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
