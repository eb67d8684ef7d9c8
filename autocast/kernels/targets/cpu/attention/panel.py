"""The work on one panel of queries: scores, running softmax and second product, a block of keys at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, ceil_div, i32, i64, minimum
from autocast.kernels.specs.attention import Step
from autocast.kernels.targets.cpu.attention.generator import Generator
from autocast.kernels.targets.cpu.attention.seen import hiding, seen_keys
from autocast.kernels.targets.cpu.products.matrix import Rows, multiply_tiles
from autocast.kernels.targets.cpu.products.pack import Source, Strip, pack_strip
from autocast.kernels.targets.cpu.products.tile import Sums, multiply_tile
from autocast.kernels.targets.cpu.vector.exponentials import LOG2_E
from autocast.kernels.targets.cpu.vector.llvm_tiles import TILE
from autocast.kernels.targets.cpu.vector.unit import VectorUnit

#: Where nothing has been seen, the maximum is this rather than -inf: no difference of infinities.
LOWEST = -3.4028234663852886e38


def apply_step(unit: VectorUnit, step: Step, value: tirx.Expr, other: tirx.Expr | None) -> tirx.Expr:
    """A vector of scores after `step`, whose tensor has the elements `other` there."""
    if other is None:
        return value * unit.splat(step.value)
    if step.kind == "add":
        return value + other
    choices = [value, unit.splat(step.value)]
    return tirx.call_pure_extern(
        unit.dtype, "autocast_choose", other, *(choices if step.kind == "keep" else choices[::-1])
    )


@dataclass(frozen=True)
class Head:
    """Packed keys: `depth_words` words in rows of `key_width`; packed values: words in rows of `value_width`.

    The matrix unit takes values as rows along the keys: `value_width` of them, padded to whole tiles.
    """

    keys: tirx.Buffer
    key_width: int
    depth_words: int
    values: tirx.Buffer
    value_width: int


class Panel:
    """Emits the code of one panel of queries, from query `first` on."""

    def __init__(
        self,
        generator: Generator,
        head: Head,
        query: Source,
        steps: list[tuple[Step, tirx.Expr | None]],
        result: tirx.Expr,
        first: tirx.Expr,
    ) -> None:
        self.generator, self.unit = generator, generator.unit
        self.spec, self.blocking = generator.spec, generator.blocking
        self.head, self.query, self.steps, self.result, self.first = head, query, steps, result, first
        self.lanes, self.width = self.unit.lanes, self.blocking.panel
        # A scale alone is left to the exponential.
        scale_only = all(step.kind == "scale" and step.value > 0 for step, _ in steps)
        self.factor = LOG2_E * (math.prod(step.value for step, _ in steps) if scale_only else 1.0)
        if scale_only:
            self.steps = []

    def emit(self) -> None:
        """Pack the queries, go over the blocks of keys, store the result."""
        unit, blocking, width = self.unit, self.blocking, self.width
        square = -(-self.spec.value_depth // self.lanes) * self.lanes
        rows = max(square, -(-self.spec.value_depth // blocking.value_rows) * blocking.value_rows)
        depth_words = -(-self.head.depth_words // self.lanes) * self.lanes
        self.q_packed = unit.scratch(depth_words * width, self.generator.word)
        score_rows = blocking.keys + max(blocking.score_rows, self.lanes)
        self.scores = unit.scratch(score_rows * width, "float32")
        self.words = T.decl_buffer((score_rows * width,), self.generator.word, data=self.scores.data)
        self.sums = unit.scratch(rows * width, "float32")
        self.maximum, self.total = unit.scratch(width, "float32"), unit.scratch(width, "float32")
        exact = isinstance(self.generator.queries, int) and self.generator.queries % width == 0
        strip = Strip(self.q_packed, 0, width)
        pack_strip(unit, self.query, self.first, strip, 0, self.head.depth_words, exact=exact)
        for vector in range(self.blocking.vectors):
            at = [unit.ramp(vector * self.lanes)]
            T.buffer_store(self.maximum, unit.splat(LOWEST), at)
            T.buffer_store(self.total, unit.splat(0.0), at)
        if blocking.one_block and self.spec.causal is None:
            self._block(i64(0), self.generator.keys)
        else:
            with T.serial(0, rows * blocking.vectors) as i:
                T.buffer_store(self.sums, unit.splat(0.0), [unit.ramp(i * self.lanes)])
            seen = self._seen()
            with T.serial(0, ceil_div(seen, blocking.keys)) as block:
                start = T.bind(block * blocking.keys)
                self._block(start, T.bind(minimum(blocking.keys, seen - start)))
        self._store(square)

    def _seen(self) -> tirx.Expr:
        """How many keys any query of the panel sees."""
        seen, queries = self.generator.seen, self.generator.queries
        rows = minimum(self.width, queries - self.first)
        for step, base in self.steps:
            view = hiding(self.spec, step)
            if view is not None and base is not None and view.rows != 0:
                stride, mask = self.generator.size(view.rows), self.generator.flats[view.argument]
                seen = seen_keys(mask, base + self.first * i64(stride), rows, stride, seen)
        if self.spec.causal is None:
            return i64(seen)
        self.offset = self.generator.offset()
        last = minimum(self.first + self.width, queries)
        return T.bind(tirx.max(i64(0), minimum(seen, last + self.offset)))

    # ---- one block of keys ----

    def _block(self, start: tirx.Expr, count: Extent) -> None:
        """Keys `start`, ..., `count` of them."""
        blocking, head, spec = self.blocking, self.head, self.spec
        rows = blocking.score_rows
        with T.serial(0, i64(ceil_div(count, rows))) as tile:
            words = T.bind((start + tile * rows) * head.key_width)
            keys = Rows(head.keys, words, head.key_width, TILE)
            sums = Sums(self.scores, T.bind(tile * (rows * self.width)), self.width)
            self._multiply(rows, keys, 1, self.q_packed, head.depth_words, sums, False)
        self._adjust(start, count)
        accumulate = not (blocking.one_block and spec.causal is None)
        self._exponentiate(count, accumulate)
        rows = blocking.value_rows
        first_word = T.bind(start // self.generator.per_word * head.value_width)
        words = ceil_div(count, self.generator.per_word)
        with T.serial(0, -(-spec.value_depth // rows)) as tile:
            # Vectors read words of V along its columns; tile registers rows along the keys, 16 words at a time.
            skip, pitch, step = (rows * TILE, TILE, head.value_width * TILE) if blocking.tiles else (rows, 1, TILE)
            values = Rows(head.values, T.bind(first_word + tile * skip), pitch, step)
            sums = Sums(self.sums, T.bind(tile * (rows * self.width)), self.width)
            self._multiply(rows, values, head.value_width, self.words, words, sums, accumulate)

    def _multiply(
        self, rows: int, a: Rows, along: int, b: tirx.Buffer, words: Extent, sums: Sums, accumulate: bool
    ) -> None:
        """Sums of products of `rows` of A, for vectors of words `along` apart, with a packed panel of `words` words."""
        if self.blocking.tiles:
            multiply_tiles(a, rows, b, 0, words, sums, accumulate)
            return
        multiply_tile(
            self.unit,
            rows=rows,
            a_word=lambda row, k: a.buffer[a.start + row * a.pitch + k * along],
            b_buffer=b,
            b_offset=0,
            k_words=words,
            sums=sums,
            accumulate=accumulate,
        )

    def _adjust(self, start: tirx.Expr, count: Extent) -> None:
        """Apply the steps and the causal mask to the scores of the block, and update the maximum."""
        unit = self.unit
        tensors = [self._tensor(step, base, start, count) for step, base in self.steps]
        unit.fence(self.scores)

        def sweep(masked: bool) -> None:
            largest = self._registers(lambda vector: self.maximum[unit.ramp(vector * self.lanes)])
            with T.serial(0, i64(count)) as row:
                for vector in range(self.blocking.vectors):
                    at = unit.ramp(row * self.width + vector * self.lanes)
                    value = self.scores[at]
                    for (step, _), tensor in zip(self.steps, tensors, strict=True):
                        value = T.bind(self._applied(step, value, tensor, row, vector))
                    if masked:
                        first = start + row - self.offset - self.first - vector * self.lanes
                        value = T.bind(tirx.call_pure_extern(unit.dtype, "autocast_from_lane", value, i32(first)))
                    if masked or self.steps:
                        T.buffer_store(self.scores, value, [at])
                    place = [T.ramp(vector * self.lanes, 1, self.lanes)]
                    T.buffer_store(largest, tirx.max(largest[place[0]], value), place)
            for vector in range(self.blocking.vectors):
                T.buffer_store(
                    self.maximum, largest[T.ramp(vector * self.lanes, 1, self.lanes)], [unit.ramp(vector * self.lanes)]
                )

        self.before = unit.scratch(self.width, "float32")
        for vector in range(self.blocking.vectors):
            at = unit.ramp(vector * self.lanes)
            T.buffer_store(self.before, self.maximum[at], [at])
        if self.spec.causal is None:
            sweep(masked=False)
            return
        with T.If(start + i64(count) > self.first + self.offset + 1):
            with T.Then():
                sweep(masked=True)
            with T.Else():
                sweep(masked=False)

    def _registers(self, value) -> tirx.Buffer:
        """A vector for each vector of the panel, small enough for the stack and so for registers."""
        buffer = T.alloc_buffer((self.width,), "float32")
        for vector in range(self.blocking.vectors):
            T.buffer_store(buffer, value(vector), [T.ramp(vector * self.lanes, 1, self.lanes)])
        return buffer

    def _tensor(self, step: Step, base: tirx.Expr | None, start: tirx.Expr, count: Extent) -> tirx.Buffer | None:
        """The part of a step's tensor that belongs to this block: a row for each key, as the scores."""
        if step.view is None:
            return None
        generator, unit, view = self.generator, self.unit, step.view
        source = generator.flats[view.argument]
        if view.rows != 0:  # it is different for each query
            rows = -(-self.blocking.keys // self.lanes) * self.lanes
            packed = unit.scratch(rows * self.width, "float32")
            stride = generator.size(view.rows)
            matrix = Source(source, base, generator.queries, generator.keys, stride, along_k=True, pairs=False)
            exact = isinstance(generator.queries, int) and generator.queries % self.width == 0
            pack_strip(unit, matrix, self.first, Strip(packed, 0, self.width), start, count, exact=exact)
            return packed
        row = unit.scratch(self.blocking.keys + self.lanes, "float32")
        with T.serial(0, i64(ceil_div(count, self.lanes))) as vector:
            at = T.bind(vector * self.lanes)
            value = unit.load(source, base + start + at, i64(count) - at)
            T.buffer_store(row, value, [unit.ramp(at)])
        return row

    def _applied(
        self, step: Step, value: tirx.Expr, tensor: tirx.Buffer | None, row: tirx.Expr, vector: int
    ) -> tirx.Expr:
        unit = self.unit
        if tensor is None:
            return apply_step(unit, step, value, None)
        if step.view is not None and step.view.rows != 0:
            return apply_step(unit, step, value, tensor[unit.ramp(row * self.width + vector * self.lanes)])
        return apply_step(unit, step, value, unit.splat(tensor[row]))

    def _power(self, x: tirx.Expr) -> tirx.Expr:
        return tirx.call_pure_extern(self.unit.dtype, f"autocast_power_{self.generator.compute}", x)

    def _exponentiate(self, count: Extent, accumulate: bool) -> None:
        """Replace the scores of the block by words of 2^(factor (score - maximum)), and update their sums."""
        unit, vectors, lanes = self.unit, self.blocking.vectors, self.lanes
        factor = T.bind(unit.splat(self.factor))
        largest = self._registers(lambda vector: self.maximum[unit.ramp(vector * lanes)])
        sums = self._registers(lambda vector: unit.splat(0.0))

        def probability(row: tirx.Expr, vector: int) -> tirx.Expr:
            place = T.ramp(vector * lanes, 1, lanes)
            score = self.scores[unit.ramp(row * self.width + vector * lanes)]
            value = T.bind(self._power((score - largest[place]) * factor))
            T.buffer_store(sums, sums[place] + value, [place])
            return value

        def word(index: tirx.Expr, vector: int, *, whole: bool) -> None:
            per_word = self.generator.per_word
            value = probability(index * per_word, vector)
            if per_word == 2:
                odd = probability(index * 2 + 1, vector) if whole else unit.splat(0.0)
                value = tirx.call_pure_extern(f"int32x{lanes}", "autocast_probabilities", value, odd)
            T.buffer_store(self.words, value, [unit.ramp(index * self.width + vector * lanes)])

        per_word = self.generator.per_word
        with T.serial(0, i64(count) // per_word) as index:
            for vector in range(vectors):
                word(index, vector, whole=True)
        if per_word == 2 and not (isinstance(count, int) and count % 2 == 0):
            with T.If(i64(count) % 2 == 1), T.Then():
                for vector in range(vectors):
                    word(i64(count) // 2, vector, whole=False)
        if self.blocking.tiles:
            first = ceil_div(count, per_word)
            with T.serial(0, i64(ceil_div(first, TILE) * TILE - first)) as beyond:
                for vector in range(vectors):
                    at = unit.ramp((first + beyond) * self.width + vector * lanes)
                    T.buffer_store(self.words, T.broadcast(tirx.const(0, "int32"), lanes), [at])
        if not accumulate:
            for vector in range(vectors):
                T.buffer_store(self.total, sums[T.ramp(vector * lanes, 1, lanes)], [unit.ramp(vector * lanes)])
            return
        for vector in range(vectors):
            at, place = unit.ramp(vector * lanes), T.ramp(vector * lanes, 1, lanes)
            decay = T.bind(self._power((self.before[at] - self.maximum[at]) * factor))
            T.buffer_store(self.total, self.total[at] * decay + sums[place], [at])
            with T.serial(0, self.spec.value_depth) as row:
                at = unit.ramp(row * self.width + vector * lanes)
                T.buffer_store(self.sums, self.sums[at] * decay, [at])

    # ---- the result ----

    def _store(self, square: int) -> None:
        """Transpose the sums, divide them by the sums of probabilities, and store them."""
        unit, lanes, spec, generator = self.unit, self.lanes, self.spec, self.generator
        turned = unit.scratch(self.width * square, "float32")
        unit.fence(self.sums)
        with T.serial(0, square // lanes) as block, T.serial(0, self.blocking.vectors) as vector:
            T.evaluate(
                tirx.call_extern(
                    "void",
                    "autocast_across_float32_float32",
                    T.address_of(self.sums[block * (lanes * self.width) + vector * lanes]),
                    i64(self.width),
                    T.address_of(turned[vector * (lanes * square) + block * lanes]),
                    i64(square),
                )
            )
        unit.fence(turned)
        stride = generator.size(spec.result.rows)
        with T.serial(0, minimum(self.width, generator.queries - self.first)) as row:
            inverse = generator.inverse(self.total[row])
            start = T.bind(self.result + (self.first + row) * stride)
            for skip in range(0, square, lanes):
                count = None if skip + lanes <= spec.value_depth else spec.value_depth - skip
                value = turned[unit.ramp(row * square + skip)] * unit.splat(inverse)
                unit.store(generator.flats[-1], start + skip, value, count)
