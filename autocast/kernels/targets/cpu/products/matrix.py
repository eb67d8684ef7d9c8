"""Matrix products by the processor's matrix unit: its sums go through memory, which the epilogue reads from the cache.

The walk is that of vectors (`panels`), and so are packed panels of B. What differs are the rows of A: they run along k,
16 words of each row to a tile register, and are packed so where they do not lie so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, ceil_div, i32, i64, minimum
from autocast.kernels.targets.cpu.products.blocking import LINE, Blocking
from autocast.kernels.targets.cpu.products.pack import Source
from autocast.kernels.targets.cpu.products.panels import Block, PanelWalk, Task
from autocast.kernels.targets.cpu.products.tile import Sums, finish_rows
from autocast.kernels.targets.cpu.vector.llvm_tiles import TILE
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, either

#: Bytes of a word.
_WORD_BYTES = 4
#: Words along k of a tile of rows that stay in the first cache, beside what passes through it: a third of it.
PART_WORDS = 128
#: Up to so many words along k, the sums of a block go on from those of the one before; more are added block by block,
#: since the error of a running sum grows with its length.
_RUNNING_WORDS = 4096


@contextmanager
def tile_registers(unit: VectorUnit, needed: object = True) -> Iterator[None]:
    """What is emitted in here may use the tile registers of the thread that runs it, where they are needed."""
    if not needed:
        yield
        return
    before = unit.scratch(TILE, "int32")
    T.evaluate(tirx.call_extern("void", "autocast_tiles_begin", before.data))
    yield
    T.evaluate(tirx.call_extern("void", "autocast_tiles_end", before.data))


@dataclass(frozen=True)
class Rows:
    """Rows of A along k, as tile registers load them: from word `start` of `buffer` on, `pitch` words from row to row.

    The words of the next tile along k are `step` words further, those of the next 16 rows `skip` words: 16 rows, unless
    it is given.
    """

    buffer: tirx.Buffer
    start: Extent
    pitch: Extent
    step: Extent
    skip: Extent | None = None


def pack_rows(
    unit: VectorUnit, source: Source, first: Extent, count: int, words: Extent, k_first: Extent, into: Rows
) -> None:
    """Emit code that packs `count` columns of a source as rows of `words` words along k, whole tiles of both.

    What lies beyond the end of k is packed as zeros, rows beyond the last column as anything.
    """
    tiles = ceil_div(words, TILE)
    if source.along_k:
        exact = isinstance(source.k, int) and source.k % (TILE * source.per_word) == 0
        with T.serial(0, i64(count)) as row:
            column = T.bind(tirx.min(i64(first) + row, i64(source.columns) - 1))
            start = T.bind(source.base + column * source.stride + k_first)
            with T.serial(0, i64(tiles)) as tile:
                k = T.bind(tile * (TILE * source.per_word))
                arguments = [T.address_of(source.view[start + k])]
                if not exact:
                    arguments.append(i32(i64(source.k) - k_first - k))
                value = tirx.call_extern(f"int32x{TILE}", source.snippet("words", not exact), *arguments)
                T.buffer_store(into.buffer, value, [unit.ramp(into.start + row * into.pitch + tile * into.step)])
        return
    square = unit.scratch(TILE * TILE, "int32")
    with T.serial(0, i64(tiles)) as tile, T.serial(0, i64(count // TILE)) as part:
        column = T.bind(i64(first) + part * TILE)
        k = T.bind(i64(k_first) + tile * (TILE * source.per_word))

        def pairs(edge: bool) -> None:
            with T.serial(0, TILE) as word:
                row = T.bind(k + word * source.per_word)
                ends = [i32(i64(source.columns) - column), i32(i64(source.k) - row)] if edge else []
                place = T.address_of(source.view[source.base + row * source.stride + column])
                packed = T.address_of(square[word * TILE])
                name = source.snippet("along", edge)
                T.evaluate(tirx.call_extern("void", name, place, i64(source.stride), packed, *ends))

        inside = tirx.all(column + TILE <= i64(source.columns), k + TILE * source.per_word <= i64(source.k))
        either(inside, lambda: pairs(False), lambda: pairs(True))
        unit.fence(square)
        target = T.address_of(into.buffer[into.start + part * (TILE * into.pitch) + tile * into.step])
        T.evaluate(
            tirx.call_extern("void", "autocast_turn", T.address_of(square[0]), i64(TILE), target, i64(into.pitch))
        )


@dataclass(frozen=True)
class Ahead:
    """What is fetched with each tile of B along k: so many cache lines, so many bytes behind the tile."""

    lines: int
    distance: Extent


def multiply_tiles(
    a: Rows,
    rows: int,
    b: tirx.Buffer,
    b_offset: Extent,
    words: Extent,
    sums: Sums,
    continues: bool | tirx.Expr = False,
    ahead: Ahead = Ahead(0, 0),
) -> None:
    """Emit code that stores the sums of `rows` rows of A, whole tiles, times a packed panel of B of `words` words.

    Where it `continues`, they are added to the sums that are stored there.
    """
    T.evaluate(
        tirx.call_extern(
            "void",
            f"autocast_tiles_{rows // TILE}x{sums.width // TILE}",
            T.address_of(a.buffer[a.start]),
            i32(a.pitch * _WORD_BYTES),
            i32(a.step * _WORD_BYTES),
            i32((a.pitch * TILE if a.skip is None else a.skip) * _WORD_BYTES),
            T.address_of(b[b_offset]),
            i32(sums.width * _WORD_BYTES),
            i32(ceil_div(words, TILE)),
            T.address_of(sums.buffer[sums.offset]),
            i32(int(continues)) if isinstance(continues, bool) else continues.astype("int32"),
            i32(ahead.lines),
            i32(ahead.distance),
        )
    )


def across_panels(
    a: Rows,
    rows: int,
    words: Extent,
    panels: tirx.Expr,
    panel_at: Callable[[tirx.Expr], tuple[tirx.Buffer, tirx.Expr]],
    sums: Sums,
    settle: Callable[[tirx.Expr, Sums], None],
    *,
    follows: bool | tirx.Expr = False,
    ahead: Ahead = Ahead(0, 0),
) -> None:
    """Emit code that multiplies `rows` rows of A with some panels of B, and settles what becomes of the sums of each.

    Rows that take much of the first cache are cut along k, so that a part of them stays there for all panels.

    Parameters
    ----------
    panel_at
        Gives the buffer and the first word of a panel.
    sums
        Room for the sums of all panels, one after the other: see `panels_of_sums`.
    settle
        Emits what is done with the sums of a panel.
    follows
        Whether words before these were multiplied, whose sums are there.
    """
    parts = ceil_div(words, PART_WORDS)
    if isinstance(parts, int) and parts <= 1 and follows is False:
        with T.serial(0, panels) as panel:
            buffer, offset = panel_at(panel)
            multiply_tiles(a, rows, buffer, offset, words, sums, ahead=ahead)
            settle(panel, sums)
        return
    part_words = PART_WORDS if not isinstance(words, int) else math.ceil(words / parts / TILE) * TILE
    # One part at least: sums of nothing are settled, too.
    with T.serial(0, tirx.max(i64(ceil_div(words, part_words)), i64(1))) as part, T.serial(0, panels) as panel:
        first = T.bind(part * part_words)
        count = T.bind(tirx.min(i64(part_words), words - first))
        buffer, offset = panel_at(panel)
        at = Sums(sums.buffer, T.bind(sums.offset + panel * (rows * sums.width)), sums.width)
        seen = replace(a, start=T.bind(a.start + tirx.truncdiv(first, i64(TILE)) * a.step))
        continues = tirx.any(follows, first > 0)
        multiply_tiles(seen, rows, buffer, T.bind(offset + first * sums.width), count, at, continues, ahead)
        either(first + count >= words, lambda: settle(panel, at))


def panels_of_sums(words: Extent, panels: int) -> int:
    """How many panels' sums `across_panels` holds at once."""
    return 1 if isinstance(words, int) and words <= PART_WORDS else panels


def add_sums(unit: VectorUnit, rows: int, sums: Sums, other: Sums, *, copy: bool = False) -> None:
    """Emit code that adds sums in memory to others, or copies them there."""
    unit.fence(other.buffer)
    with T.serial(0, i64(rows * sums.width // unit.lanes)) as vector:
        to, at = (unit.ramp(i64(one.offset) + vector * unit.lanes) for one in (sums, other))
        T.buffer_store(sums.buffer, other.buffer[at] if copy else sums.buffer[to] + other.buffer[at], [to])


class MatrixWalk(PanelWalk):
    """Emits the code of one task that multiplies with tile registers."""

    padded = True

    def __init__(self, unit: VectorUnit, blocking: Blocking, task: Task) -> None:
        whole = isinstance(task.a.k, int) and task.a.k % (TILE * task.a.per_word) == 0
        super().__init__(unit, blocking, task if whole else replace(task, a_words=None))
        self.k_words = ceil_div(self.k_words, TILE) * TILE  # panels and packed rows end in zeros
        self.runs_on = isinstance(self.k_words, int) and self.k_words <= _RUNNING_WORDS

    def emit(self) -> None:
        """All panels of the task."""
        blocking = self.blocking
        held = panels_of_sums(minimum(self.k_words, blocking.k_words), blocking.panels)
        buffer = self.unit.scratch(held * blocking.tile_rows * blocking.panel, "float32")
        self.sums = Sums(buffer, 0, blocking.panel)
        with tile_registers(self.unit):
            super().emit()

    def _tiles_in_place(self, a_words: tirx.Buffer, block: Block) -> None:
        """Whole tiles read A where it lies; an incomplete last one is packed, so that no row beyond is read."""
        task, height = self.task, self.blocking.tile_rows
        last_whole = T.bind(minimum(task.last_tile, self.m // height))
        with T.serial(task.first_tile, last_whole) as tile:
            start = T.bind(task.a_words_base + tile * (height * self.k_words) + block.first)
            self._panels(tile, Rows(a_words, start, self.k_words, TILE), height, block)
        if not (isinstance(self.m, int) and self.m % height == 0):
            first = T.bind(tirx.max(task.first_tile, last_whole))
            self._packed_tiles(first, task.last_tile, 1, block)

    def _packed_tiles(self, first_tile: tirx.Expr, last_tile: tirx.Expr, group: int, block: Block) -> None:
        """Tiles whose rows of A are packed just before they are used: panels stay in the cache, so `group` is 1."""
        height = self.blocking.tile_rows
        rows = Rows(self.unit.scratch(height * self.blocking.k_words, self.word), 0, TILE, height * TILE)
        with T.serial(first_tile, last_tile) as tile:
            first = T.bind(tile * height)
            pack_rows(self.unit, self.task.a, first, height, block.words, block.first * self.per_word, rows)
            self._panels(tile, rows, T.bind(tirx.min(i64(height), i64(self.m) - first)), block)

    def _panels(self, tile: tirx.Expr, a: Rows, valid: Extent, block: Block) -> None:
        """One tile of rows, of which `valid` exist, times the panels of a block."""
        unit, blocking, output = self.unit, self.blocking, self.task.output
        height, own = blocking.tile_rows, T.bind(tile - self.task.first_tile)
        of_blocks = None
        if block.partial is not None:
            of_blocks = Sums(block.partial, T.bind(own * (blocking.panels * height * blocking.panel)), blocking.panel)
        runs_on = of_blocks is not None and self.runs_on

        def settle(panel: tirx.Expr, sums: Sums) -> None:
            column = T.bind((block.first_panel + panel) * blocking.panel)
            if of_blocks is not None and not runs_on:
                total = replace(of_blocks, offset=T.bind(of_blocks.offset + panel * (height * blocking.panel)))
                add, copy = (partial(add_sums, unit, height, total, sums, copy=copy) for copy in (False, True))
                either(block.follows, add, copy)
                sums = total
            either(block.ends, lambda: finish_rows(unit, output, sums, valid, T.bind(tile * height), column))

        def panel_at(panel: tirx.Expr) -> tuple[tirx.Buffer, tirx.Expr]:
            return block.b_buffer, T.bind(block.b_offset + panel * block.b_stride)

        across_panels(
            a,
            height,
            block.words,
            block.count,
            panel_at,
            of_blocks if of_blocks is not None and runs_on else self.sums,
            settle,
            follows=block.follows if block.follows is not None and runs_on else False,
            ahead=Ahead(blocking.fetched, self._distance(own, block) if blocking.fetched else 0),
        )

    def _distance(self, tile: tirx.Expr, block: Block) -> tirx.Expr:
        """How many bytes behind each tile of B the task's `tile`-th rows fetch: a share of its like in the next block.

        Rows beyond those that share it fetch again what is there.
        """
        width, lines = self.blocking.panel, self.blocking.fetched
        words = block.count * block.b_stride
        if block.ends is not None:  # the last words of some panels are followed by the first ones of others
            words = tirx.Select(block.ends, words - block.first * width, i64(block.words * width))
        return T.bind((words + tile % ceil_div(width, lines) * (lines * LINE)) * _WORD_BYTES)
