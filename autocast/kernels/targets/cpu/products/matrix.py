"""Matrix products by the processor's matrix unit: its sums go through memory, which the epilogue reads from the cache.

The walk is that of vectors (`panels`), and so are packed panels of B. What differs are the rows of A: they run along k,
16 words of each row to a tile register, and are packed so where they do not lie so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, ceil_div, i32, i64, minimum
from autocast.kernels.targets.cpu.products.blocking import Blocking
from autocast.kernels.targets.cpu.products.pack import Source
from autocast.kernels.targets.cpu.products.panels import Block, PanelWalk, Task, either
from autocast.kernels.targets.cpu.products.tile import Sums, finish_rows
from autocast.kernels.targets.cpu.vector.llvm_tiles import TILE
from autocast.kernels.targets.cpu.vector.unit import VectorUnit

#: Bytes of a word.
_WORD_BYTES = 4


@contextmanager
def tile_registers(unit: VectorUnit) -> Iterator[None]:
    """What is emitted in here may use the tile registers of the thread that runs it."""
    before = unit.scratch(TILE, "int32")
    T.evaluate(tirx.call_extern("void", "autocast_tiles_begin", before.data))
    yield
    T.evaluate(tirx.call_extern("void", "autocast_tiles_end", before.data))


@dataclass(frozen=True)
class Rows:
    """Rows of A along k, as tile registers load them: `at` word `start` of `buffer`, `pitch` words from row to row.

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

        def pairs(edge: bool, column: tirx.Expr = column, k: tirx.Expr = k) -> None:
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


def multiply_tiles(
    unit: VectorUnit,
    a: Rows,
    rows: int,
    b: tirx.Buffer,
    b_offset: Extent,
    words: Extent,
    sums: Sums,
    room: Sums | None = None,
) -> None:
    """Emit code that stores the sums of `rows` rows of A, whole tiles, times a packed panel of B of `words` words.

    With `room`, they are stored there and then added to `sums`: so errors grow with the size of a block.
    """
    into = sums if room is None else room
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
            T.address_of(into.buffer[into.offset]),
        )
    )
    if room is None:
        return
    unit.fence(room.buffer)
    with T.serial(0, i64(rows * sums.width // unit.lanes)) as vector:
        at, other = (unit.ramp(i64(one.offset) + vector * unit.lanes) for one in (sums, room))
        T.buffer_store(sums.buffer, sums.buffer[at] + room.buffer[other], [at])


class MatrixWalk(PanelWalk):
    """Emits the code of one task that multiplies with tile registers."""

    padded = True

    def __init__(self, unit: VectorUnit, blocking: Blocking, task: Task) -> None:
        whole = isinstance(task.a.k, int) and task.a.k % (TILE * task.a.per_word) == 0
        super().__init__(unit, blocking, task if whole else replace(task, a_words=None))
        self.k_words = ceil_div(self.k_words, TILE) * TILE  # panels and packed rows end in zeros

    def emit(self) -> None:
        """All panels of the task."""
        self.sums = super()._sums()
        with tile_registers(self.unit):
            super().emit()

    def _sums(self) -> Sums:
        return self.sums

    def _tiles_in_place(self, a_words: tirx.Buffer, block: Block) -> None:
        """Whole tiles read A where it lies; an incomplete last one is packed, so that no row beyond is read."""
        task, height = self.task, self.blocking.tile_rows
        last_whole = T.bind(minimum(task.last_tile, self.m // height))
        with T.serial(task.first_tile, last_whole) as tile:
            start = T.bind(task.a_words_base + tile * (height * self.k_words) + block.first)
            with T.serial(0, block.count) as panel:
                self._product(tile, panel, Rows(a_words, start, self.k_words, TILE), height, block)
        if not (isinstance(self.m, int) and self.m % height == 0):
            first = T.bind(tirx.max(task.first_tile, last_whole))
            self._packed_tiles(first, task.last_tile, 1, block)

    def _packed_tiles(self, first_tile: tirx.Expr, last_tile: tirx.Expr, group: int, block: Block) -> None:
        """Tiles whose rows of A are packed, `group` tiles at a time, just before they are used."""
        height = self.blocking.tile_rows
        size = height * self.blocking.k_words
        strip = self.unit.scratch(group * size, self.word)
        with T.serial(0, ceil_div(last_tile - first_tile, group)) as g:
            first = T.bind(first_tile + g * group)
            tiles = T.bind(tirx.min(i64(group), last_tile - first))
            with T.serial(0, tiles) as q:
                rows = Rows(strip, T.bind(q * size), TILE, height * TILE)
                k_first = block.first * self.per_word
                pack_rows(self.unit, self.task.a, T.bind((first + q) * height), height, block.words, k_first, rows)
            # Panels first: each comes from the last cache once, for all these tiles; they stay in the one before it.
            with T.serial(0, block.count) as panel, T.serial(0, tiles) as q:
                tile = T.bind(first + q)
                valid = T.bind(tirx.min(i64(height), i64(self.m) - tile * height))
                self._product(tile, panel, Rows(strip, T.bind(q * size), TILE, height * TILE), valid, block)

    def _product(self, tile: tirx.Expr, panel: tirx.Expr, a: Rows, valid: Extent, block: Block) -> None:
        """One tile of rows, of which `valid` exist, times one panel of the block."""
        row, column, sums = self._place(tile, panel, block)
        offset = T.bind(block.b_offset + panel * block.b_stride)

        def multiply(room: Sums | None = None) -> None:
            multiply_tiles(self.unit, a, self.blocking.tile_rows, block.b_buffer, offset, block.words, sums, room)

        if block.follows is None:
            multiply()
        else:
            either(block.follows, lambda: multiply(self.sums), multiply)
        either(block.ends, lambda: finish_rows(self.unit, self.task.output, sums, valid, row, column))
