"""The walk over one task's part of a matrix product: pack panels of B, multiply tiles of rows of A with each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, ceil_div, i64, minimum
from autocast.kernels.targets.cpu.products.blocking import LINE, Blocking
from autocast.kernels.targets.cpu.products.pack import Source, Strip, pack_strip
from autocast.kernels.targets.cpu.products.tile import (
    AWord,
    Output,
    Sums,
    Tile,
    finish_rows,
    finish_tile,
    heights_down_from,
)
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, either


@dataclass(frozen=True)
class Task:
    """What one task owns: a matrix of the batch, tiles of its rows, panels of its columns (last ones excluded).

    Attributes
    ----------
    a, b, output
        The matrices.
    a_words
        A's memory as words, if the microkernel can read it in place, and where the matrix begins in it.
    b_panels
        B's memory as words, if it is packed already: panel after panel, each `b_panel_words` long.
    most_tiles
        How many tiles of rows there are at most, where their number is read from memory: TIR allocates nothing by that.
    """

    a: Source
    b: Source
    output: Output
    a_words: tirx.Buffer | None
    a_words_base: tirx.Expr
    b_panels: tirx.Buffer | None
    b_panel_words: Extent
    first_tile: tirx.Expr
    last_tile: tirx.Expr
    first_panel: tirx.Expr
    last_panel: tirx.Expr
    most_tiles: Extent | None = None


@dataclass(frozen=True)
class Block:
    """A block of k, of `words` words from word `first` on, for `count` panels of B from `first_panel` on.

    Attributes
    ----------
    b_buffer, b_offset, b_stride
        The panels, packed: where the block's words of the first one begin, and the distance between two.
    partial
        Sums of all tiles and panels from block to block; None where the block is the whole of k.
    follows, ends
        Whether there are sums of an earlier block, and whether no later block follows; None for the whole of k.
    """

    first: Extent
    words: Extent
    first_panel: tirx.Expr
    count: tirx.Expr
    b_buffer: tirx.Buffer
    b_offset: Extent
    b_stride: Extent
    partial: tirx.Buffer | None
    follows: tirx.Expr | None
    ends: tirx.Expr | None


class PanelWalk:
    """Emits the code of one task."""

    #: Whether words along k are rounded up to whole vectors, with zeros.
    padded = False

    def __init__(self, unit: VectorUnit, blocking: Blocking, task: Task) -> None:
        self.unit, self.blocking, self.task = unit, blocking, task
        self.word = "int32" if task.a.pairs else "float32"
        self.per_word = task.a.per_word
        self.m, self.n = task.a.columns, task.b.columns
        self.k_words = ceil_div(task.a.k, self.per_word)

    def emit(self) -> None:
        """All panels of the task, a group that fits the cache at a time."""
        task, panels = self.task, self.blocking.panels
        with T.serial(0, ceil_div(task.last_panel - task.first_panel, panels)) as group:
            first = T.bind(task.first_panel + group * panels)
            self._group(first, T.bind(tirx.min(i64(panels), task.last_panel - first)))

    def _group(self, first_panel: tirx.Expr, count: tirx.Expr) -> None:
        """All rows of the task times `count` panels from `first_panel` on."""
        blocking, task, unit = self.blocking, self.task, self.unit
        packed = task.b_panels
        if packed is None:
            packed = unit.scratch(blocking.panels * blocking.k_words * blocking.panel, self.word)
        if isinstance(self.k_words, int) and self.k_words <= blocking.k_words:
            self._k_block(self._block(0, self.k_words, first_panel, count, packed, None))
            return
        tiles = T.bind(task.last_tile - task.first_tile) if task.most_tiles is None else task.most_tiles
        partial = unit.scratch(tiles * (blocking.tile_rows * blocking.panels * blocking.panel), "float32")
        # One block at least: sums of nothing are stored, too.
        with T.serial(0, tirx.max(i64(ceil_div(self.k_words, blocking.k_words)), i64(1))) as block:
            first = T.bind(block * blocking.k_words)
            words = T.bind(minimum(blocking.k_words, self.k_words - first))
            self._k_block(self._block(first, words, first_panel, count, packed, partial))

    def _block(
        self,
        first: Extent,
        words: Extent,
        first_panel: tirx.Expr,
        count: tirx.Expr,
        packed: tirx.Buffer,
        partial: tirx.Buffer | None,
    ) -> Block:
        task, panel = self.task, self.blocking.panel
        if task.b_panels is None:
            offset, stride = i64(0), self.blocking.k_words * panel
        else:
            offset, stride = first_panel * task.b_panel_words + first * panel, task.b_panel_words
        follows, ends = (None, None) if partial is None else (i64(first) > 0, i64(first + words).equal(self.k_words))
        return Block(first, words, first_panel, count, packed, offset, stride, partial, follows, ends)

    def _k_block(self, block: Block) -> None:
        """One block of k: pack the panels of B, then run over the tiles of A."""
        blocking, task = self.blocking, self.task
        exact = isinstance(self.n, int) and self.n % blocking.panel == 0
        if task.b_panels is None:
            with T.serial(0, block.count) as panel:
                strip = Strip(block.b_buffer, panel * block.b_stride, blocking.panel)
                column = (block.first_panel + panel) * blocking.panel
                k_first = block.first * self.per_word
                pack_strip(self.unit, task.b, column, strip, k_first, block.words, exact=exact, padded=self.padded)
        if task.a_words is None:
            self._packed_tiles(task.first_tile, task.last_tile, blocking.group, block)
        else:
            self._tiles_in_place(task.a_words, block)

    def _tiles_in_place(self, a_words: tirx.Buffer, block: Block) -> None:
        """Whole tiles read A where it lies; an incomplete last one is packed, so that no row beyond is read."""
        task, height = self.task, self.blocking.tile_rows
        last_whole = T.bind(minimum(task.last_tile, self.m // height))
        with T.serial(task.first_tile, last_whole) as tile:
            start = T.bind(task.a_words_base + tile * (height * self.k_words) + block.first)
            with T.serial(0, block.count) as panel:
                self._tile(tile, panel, lambda row, k: a_words[start + row * self.k_words + k], height, block)
        if not (isinstance(self.m, int) and self.m % height == 0):
            first = T.bind(tirx.max(task.first_tile, last_whole))
            self._packed_tiles(first, task.last_tile, 1, block)

    def _packed_tiles(self, first_tile: tirx.Expr, last_tile: tirx.Expr, group: int, block: Block) -> None:
        """Tiles whose rows of A are packed, `group` tiles at a time, just before they are used."""
        height, lanes = self.blocking.tile_rows, self.unit.lanes
        width = -(-group * height // lanes) * lanes
        exact = isinstance(self.m, int) and self.m % (group * height) == 0 and width == group * height
        with T.serial(0, ceil_div(last_tile - first_tile, group)) as g:
            first = T.bind(first_tile + g * group)
            apart = self.blocking.k_words * lanes if lanes % height == 0 else None
            strip = Strip(self.unit.scratch(self.blocking.k_words * width, self.word), 0, width, apart)
            k_first = block.first * self.per_word
            pack_strip(self.unit, self.task.a, first * height, strip, k_first, block.words, exact=exact)
            # Panels first: each comes from the last cache once, for all these tiles; they stay in the one before it.
            with (
                T.serial(0, block.count) as panel,
                T.serial(0, tirx.min(i64(group), last_tile - first)) as q,
            ):
                tile = T.bind(first + q)
                valid = T.bind(tirx.min(i64(height), i64(self.m) - tile * height))
                first_row = q * height
                start = T.bind(first_row if apart is None else first_row // lanes * apart + first_row % lanes)
                pitch = strip.pitch(lanes)
                self._tile(tile, panel, lambda row, k: strip.buffer[start + k * pitch + row], valid, block)

    def _tile(self, tile: tirx.Expr, panel: tirx.Expr, a_word: AWord, valid: Extent, block: Block) -> None:
        """One tile of rows, of which `valid` exist, times one panel of the block."""
        blocking, unit = self.blocking, self.unit
        sums = Sums(unit.scratch(blocking.tile_rows * blocking.panel, "float32"), 0, blocking.panel)
        row, column, sums = self._place(tile, panel, block, sums)
        offset = T.bind(block.b_offset + panel * block.b_stride)
        between = self._fetch_next(tile, offset, block) if blocking.fetched else None

        def multiply(heights: list[int]) -> None:
            """The lowest tile that holds the rows; `heights` are the tallest first."""
            height, *lower = heights
            if lower:
                either(i64(valid) <= lower[0], lambda: multiply(lower), lambda: multiply([height]))
                return
            registers = Tile(unit, height, blocking.panel)
            unit.fence(sums.buffer)
            registers.clear()
            registers.multiply(a_word, block.b_buffer, offset, block.words, between)
            if block.follows is not None:
                either(block.follows, lambda: registers.add(sums))
            self._settle(registers, sums, valid, row, column, block)

        whole = isinstance(self.m, int) or isinstance(valid, int)
        multiply([blocking.tile_rows] if whole else heights_down_from(blocking.tile_rows, blocking.tile_vectors))

    def _place(self, tile: tirx.Expr, panel: tirx.Expr, block: Block, whole: Sums) -> tuple[tirx.Expr, tirx.Expr, Sums]:
        """The row and the column where a tile begins, and where its sums are: `whole`, if the block is all of k."""
        blocking, task = self.blocking, self.task
        row = T.bind(tile * blocking.tile_rows)
        column = T.bind((block.first_panel + panel) * blocking.panel)
        if block.partial is None:
            return row, column, whole
        tiles = task.last_tile - task.first_tile
        at = T.bind((panel * tiles + (tile - task.first_tile)) * (blocking.tile_rows * blocking.panel))
        return row, column, Sums(block.partial, at, blocking.panel)

    def _fetch_next(self, tile: tirx.Expr, offset: tirx.Expr, block: Block) -> Callable[[tirx.Expr], None]:
        """Emits, for each word of a tile, the tile's share of fetching the block of B that lies behind this one."""
        width, lines = self.blocking.panel, self.blocking.fetched
        words = block.words * (lines * LINE)
        start = T.bind(offset + block.words * width + (tile - self.task.first_tile) * words)

        def fetch(k: tirx.Expr) -> None:
            for line in range(lines):
                self.unit.prefetch(block.b_buffer, start + (k * lines + line) * LINE)

        return fetch

    def _settle(
        self, registers: Tile, sums: Sums, valid: Extent, row: tirx.Expr, column: tirx.Expr, block: Block
    ) -> None:
        """What becomes of the sums of one tile and one panel: they are kept for the next block, or are the output."""
        unit, output = self.unit, self.task.output

        def through_memory() -> None:
            registers.store(sums)
            either(block.ends, lambda: finish_rows(unit, output, sums, valid, row, column))

        if not output.finish.from_registers:
            through_memory()
            return
        inside = [] if block.ends is None else [block.ends]
        if not (isinstance(valid, int) and valid == registers.rows):
            inside.append(i64(valid).equal(registers.rows))
        if not (isinstance(self.n, int) and self.n % registers.width == 0):
            inside.append(column + registers.width <= i64(self.n))

        def from_registers() -> None:
            starts = [T.bind(output.base + (row + r) * output.columns + column) for r in range(registers.rows)]
            finish_tile(unit, output, registers, starts, column)

        either(tirx.all(*inside) if inside else None, from_registers, through_memory)
