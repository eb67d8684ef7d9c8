"""Attention of a few queries, as in decoding: keys and values are used a few times only, so they are never packed."""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, ceil_div, i32, i64, minimum
from autocast.kernels.specs.attention import Step
from autocast.kernels.targets.cpu.attention.generator import Generator
from autocast.kernels.targets.cpu.attention.panel import LOWEST, apply_step
from autocast.kernels.targets.cpu.vector.exponentials import LOG2_E

#: At most so many keys' products with the queries are summed together.
_KEYS = 4

#: Keys whose values are summed in registers: the error of a longer sum would grow with its length.
_BLOCK = 1024


class FewQueries:
    """Emits the code of one head of keys and values, for the queries of all heads that share it.

    Attributes
    ----------
    rows
        (where Q's row begins, the query's number, where each step's matrix begins, where the result's row begins).
    sums, together
        Sums that are kept in registers; keys whose products are summed together.
    """

    def __init__(
        self,
        generator: Generator,
        indices: list[tirx.Expr],
        rows: list[tuple[tirx.Expr, int, list[tirx.Expr | None], tirx.Expr]],
    ) -> None:
        self.generator, self.unit, self.spec = generator, generator.unit, generator.spec
        self.lanes, self.rows, self.keys = self.unit.lanes, rows, generator.seen
        self.sums = self.unit.isa.registers // 2
        self.together = max(1, min(_KEYS, self.sums // len(rows)))
        self.keys_base, self.values_base = (generator.base(view, indices) for view in (self.spec.key, self.spec.value))

    def emit(self) -> None:
        """Scores of every key, their softmax, and the sum of values weighted by it."""
        spec, unit = self.spec, self.unit
        # What is allocated may be hoisted before `self.keys` is known, so its size is that of the argument.
        stored = self._padded(self.generator.size(spec.keys))
        self.stride = self._padded(self.keys)
        self.weights = unit.scratch(stored * len(self.rows), "float32")
        self.width = -(-spec.depth // (self.lanes * self.generator.per_word)) * self.lanes
        queries = self._queries()
        with T.serial(0, i64(ceil_div(self.keys, self.together))) as group:
            self._scores(queries, group)
        totals = [self._softmax(number) for number in range(len(self.rows))]
        vectors = -(-spec.value_depth // self.lanes)
        together = max(1, min(vectors, self.sums // len(self.rows)))
        for first in range(0, vectors, together):
            self._values(first, min(together, vectors - first), totals)

    def _padded(self, keys: Extent) -> Extent:
        return ceil_div(keys, self.lanes) * self.lanes + self.lanes

    def _words(self, buffer: tirx.Buffer, start: tirx.Expr, vector: int) -> tirx.Expr:
        """The `vector`-th vector of words of a row of Q or K, zero beyond its end."""
        skip = vector * self.lanes * self.generator.per_word
        count = None
        if self.spec.depth - skip < self.lanes * self.generator.per_word:
            count = self.spec.depth - skip
        if not self.generator.pairs:
            return self.unit.load(buffer, start + skip, count)
        name = "autocast_words_bfloat16_bfloat16" + ("" if count is None else "_part")
        arguments = [T.address_of(buffer[start + skip])] + ([] if count is None else [i32(count)])
        return tirx.call_extern(f"int32x{self.lanes}", name, *arguments)

    def _queries(self) -> tirx.Buffer:
        unit = self.unit
        queries = unit.scratch(self.width * len(self.rows), self.generator.word)
        source = self.generator.flats[self.spec.query.argument]
        for number, (start, *_) in enumerate(self.rows):
            for vector in range(self.width // self.lanes):
                at = unit.ramp(number * self.width + vector * self.lanes)
                T.buffer_store(queries, self._words(source, start, vector), [at])
        unit.fence(queries)
        return queries

    def _scores(self, queries: tirx.Buffer, group: tirx.Expr) -> None:
        """The products of all queries with `together` keys; beyond the last key it is computed again."""
        unit, generator = self.unit, self.generator
        source, stride = generator.flats[self.spec.key.argument], generator.size(self.spec.key.rows)
        last = i64(self.keys) - 1
        starts = [
            T.bind(self.keys_base + tirx.min(group * self.together + j, last) * stride) for j in range(self.together)
        ]
        multiply = unit.dot_pairs if generator.pairs else unit.multiply_add
        sums = [[unit.splat(0.0)] * self.together for _ in self.rows]
        for vector in range(self.width // self.lanes):
            words = [T.bind(self._words(source, start, vector)) for start in starts]
            for number, own in enumerate(sums):
                query = T.bind(queries[unit.ramp(number * self.width + vector * self.lanes)])
                sums[number] = [T.bind(multiply(query, word, total)) for word, total in zip(words, own, strict=True)]
        for number, own in enumerate(sums):
            for j, total in enumerate(own):
                value = tirx.call_pure_extern("float32", "autocast_sum", total)
                T.buffer_store(self.weights, value, [number * self.stride + group * self.together + j])

    def _softmax(self, number: int) -> tirx.Expr:
        """Replace the scores of one query by the powers of their distance to the largest; answers 1 / their sum."""
        unit, spec, lanes = self.unit, self.spec, self.lanes
        _, query, bases, _ = self.rows[number]
        row = T.bind(i64(number) * self.stride)
        seen: Extent = self.keys
        if spec.causal is not None:
            offset = self.generator.offset()
            seen = T.bind(tirx.max(i64(0), minimum(self.keys, offset + (query + 1))))
        vectors = i64(ceil_div(seen, lanes))
        largest = T.alloc_buffer((lanes,), "float32")
        total = T.alloc_buffer((lanes,), "float32")
        every = [T.ramp(0, 1, lanes)]
        T.buffer_store(largest, unit.splat(LOWEST), every)
        T.buffer_store(total, unit.splat(0.0), every)
        unit.fence(self.weights)
        with T.serial(0, vectors) as vector:
            at = T.bind(vector * lanes)
            count = T.bind(i64(seen) - at)
            value = self.weights[unit.ramp(row + at)]
            for step, base in zip(spec.steps, bases, strict=True):
                value = T.bind(apply_step(unit, step, value, self._tensor(step, base, query, at, count)))
            value = T.bind(tirx.call_pure_extern(unit.dtype, "autocast_to_lane", value, i32(count)))
            T.buffer_store(self.weights, value, [unit.ramp(row + at)])
            T.buffer_store(largest, tirx.max(largest[every[0]], value), every)
        most = T.bind(unit.splat(tirx.call_pure_extern("float32", "autocast_largest", largest[every[0]])))
        factor = T.bind(unit.splat(LOG2_E))
        with T.serial(0, vectors) as vector:
            at = unit.ramp(row + vector * lanes)
            value = (self.weights[at] - most) * factor
            value = T.bind(tirx.call_pure_extern(unit.dtype, f"autocast_power_{self.generator.compute}", value))
            T.buffer_store(self.weights, value, [at])
            T.buffer_store(total, total[every[0]] + value, every)
        # What a causal mask hides must not count either.
        with T.serial(vectors, i64(ceil_div(self.keys, lanes))) as vector:
            T.buffer_store(self.weights, unit.splat(0.0), [unit.ramp(row + vector * lanes)])
        unit.fence(self.weights)
        return self.generator.inverse(tirx.call_pure_extern("float32", "autocast_sum", total[every[0]]))

    def _tensor(
        self, step: Step, base: tirx.Expr | None, query: int, at: tirx.Expr, count: tirx.Expr
    ) -> tirx.Expr | None:
        if step.view is None:
            return None
        start = base + query * i64(self.generator.size(step.view.rows)) + at
        return self.unit.load(self.generator.flats[step.view.argument], start, count)

    def _values(self, first: int, vectors: int, factors: list[tirx.Expr]) -> None:
        """Columns of the result, `vectors` vectors of them from vector `first` on."""
        unit, generator, spec, lanes = self.unit, self.generator, self.spec, self.lanes
        source, stride = generator.flats[spec.value.argument], generator.size(spec.value.rows)
        sums = [T.alloc_buffer((vectors * lanes,), "float32") for _ in self.rows]
        places = [T.ramp(vector * lanes, 1, lanes) for vector in range(vectors)]
        counts = [spec.value_depth - (first + vector) * lanes for vector in range(vectors)]
        parts = [count if count < lanes else None for count in counts]
        totals = [T.alloc_buffer((vectors * lanes,), "float32") for _ in self.rows]
        buffers = [(own, total, place) for own, total in zip(sums, totals, strict=True) for place in places]
        for _, total, place in buffers:
            T.buffer_store(total, unit.splat(0.0), [place])
        with T.serial(0, i64(ceil_div(self.keys, _BLOCK))) as block:
            for own, _, place in buffers:
                T.buffer_store(own, unit.splat(0.0), [place])
            begin = T.bind(block * _BLOCK)
            with T.serial(begin, T.bind(minimum(begin + _BLOCK, self.keys))) as key:
                start = T.bind(self.values_base + key * stride + first * lanes)
                values = [T.bind(unit.load(source, start + v * lanes, part)) for v, part in enumerate(parts)]
                for number, own in enumerate(sums):
                    weight = T.bind(unit.splat(self.weights[number * self.stride + key]))
                    for place, value in zip(places, values, strict=True):
                        T.buffer_store(own, unit.multiply_add(weight, value, own[place]), [place])
            for own, total, place in buffers:
                T.buffer_store(total, total[place] + own[place], [place])
        for (*_, result), total, factor in zip(self.rows, totals, factors, strict=True):
            for v, (place, part) in enumerate(zip(places, parts, strict=True)):
                at = result + (first + v) * lanes
                unit.store(generator.flats[-1], at, total[place] * unit.splat(factor), part)
