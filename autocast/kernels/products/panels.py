"""The walk over one task's part of a matrix product: pack panels of B, multiply tiles of rows of A with each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.products.blocking import Blocking
from autocast.kernels.products.pack import Source, Strip, pack_strip
from autocast.kernels.products.tile import Output, Sums, finish_rows, multiply_tile
from autocast.kernels.vector.unit import Extent, VectorUnit, ceil_div, i64, minimum

#: Gives the word of A at (row of a tile, word along k).
AWord = Callable[[int, tirx.Expr], tirx.Expr]


@dataclass(frozen=True)
class Task:
    """What one task owns: a matrix of the batch, tiles of its rows, panels of its columns (last ones excluded).

    Attributes
    ----------
    a, b, output
        The matrices.
    a_words
        A's memory as words, if the microkernel can read it in place, and where the matrix begins in it.
    """

    a: Source
    b: Source
    output: Output
    a_words: tirx.Buffer | None
    a_words_base: tirx.Expr
    first_tile: tirx.Expr
    last_tile: tirx.Expr
    first_panel: tirx.Expr
    last_panel: tirx.Expr


class PanelWalk:
    """Emits the code of one task."""

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
        packed = unit.scratch(blocking.panels * blocking.k_words * blocking.panel, self.word)
        if isinstance(self.k_words, int) and self.k_words <= blocking.k_words:
            self._k_block(first_panel, count, packed, 0, self.k_words, None)
            return
        rows = T.bind((task.last_tile - task.first_tile) * blocking.tile_rows)
        size = rows * (blocking.panels * blocking.panel)
        partial = unit.scratch(size, "float32")
        with T.serial(0, size // unit.lanes) as i:
            T.buffer_store(partial, unit.splat(0.0), [unit.ramp(i * unit.lanes)])
        with T.serial(0, i64(ceil_div(self.k_words, blocking.k_words))) as block:
            k_first = T.bind(block * blocking.k_words)
            k_words = T.bind(minimum(blocking.k_words, self.k_words - k_first))
            self._k_block(first_panel, count, packed, k_first, k_words, partial)
        row = T.bind(task.first_tile * blocking.tile_rows)
        valid = T.bind(tirx.min(rows, i64(self.m) - row))
        with T.serial(0, count) as panel:
            sums = Sums(partial, T.bind(panel * rows * blocking.panel), blocking.panel)
            finish_rows(unit, task.output, sums, valid, row, (first_panel + panel) * blocking.panel)

    def _k_block(
        self,
        first_panel: tirx.Expr,
        count: tirx.Expr,
        packed: tirx.Buffer,
        k_first: Extent,
        k_words: Extent,
        partial: tirx.Buffer | None,
    ) -> None:
        """One block of k: pack the panels of B, then run over the tiles of A."""
        blocking, task = self.blocking, self.task
        panel_words = blocking.k_words * blocking.panel
        exact = isinstance(self.n, int) and self.n % blocking.panel == 0
        with T.serial(0, count) as panel:
            strip = Strip(packed, panel * panel_words, blocking.panel)
            column = (first_panel + panel) * blocking.panel
            pack_strip(self.unit, task.b, column, strip, k_first * self.per_word, k_words, exact=exact)

        def by_panels(tile: tirx.Expr, a_word: AWord, valid: Extent) -> None:
            with T.serial(0, count) as panel:
                b_offset = T.bind(panel * panel_words)
                column = T.bind((first_panel + panel) * blocking.panel)
                if partial is None:
                    sums = Sums(self.unit.scratch(blocking.tile_rows * blocking.panel, "float32"), 0, blocking.panel)
                else:
                    rows = (task.last_tile - task.first_tile) * blocking.tile_rows
                    at = (panel * rows + (tile - task.first_tile) * blocking.tile_rows) * blocking.panel
                    sums = Sums(partial, T.bind(at), blocking.panel)
                multiply_tile(
                    self.unit,
                    rows=blocking.tile_rows,
                    a_word=a_word,
                    b_buffer=packed,
                    b_offset=b_offset,
                    k_words=k_words,
                    sums=sums,
                    accumulate=partial is not None,
                )
                if partial is None:
                    finish_rows(self.unit, task.output, sums, valid, tile * blocking.tile_rows, column)

        if task.a_words is None:
            self._packed_tiles(task.first_tile, task.last_tile, blocking.group, k_first, k_words, by_panels)
        else:
            self._tiles_in_place(task.a_words, k_first, k_words, by_panels)

    def _tiles_in_place(
        self,
        a_words: tirx.Buffer,
        k_first: Extent,
        k_words: Extent,
        by_panels: Callable[[tirx.Expr, AWord, Extent], None],
    ) -> None:
        """Whole tiles read A where it lies; an incomplete last one is packed, so that no row beyond is read."""
        task, height = self.task, self.blocking.tile_rows
        last_whole = T.bind(minimum(task.last_tile, self.m // height))
        with T.serial(task.first_tile, last_whole) as tile:
            start = T.bind(task.a_words_base + tile * (height * self.k_words) + k_first)
            by_panels(tile, lambda row, k: a_words[start + row * self.k_words + k], height)
        if not (isinstance(self.m, int) and self.m % height == 0):
            first = T.bind(tirx.max(task.first_tile, last_whole))
            self._packed_tiles(first, task.last_tile, 1, k_first, k_words, by_panels)

    def _packed_tiles(
        self,
        first_tile: tirx.Expr,
        last_tile: tirx.Expr,
        group: int,
        k_first: Extent,
        k_words: Extent,
        by_panels: Callable[[tirx.Expr, AWord, Extent], None],
    ) -> None:
        """Tiles whose rows of A are packed, `group` tiles at a time, just before they are used."""
        height, lanes = self.blocking.tile_rows, self.unit.lanes
        width = -(-group * height // lanes) * lanes
        exact = isinstance(self.m, int) and self.m % (group * height) == 0 and width == group * height
        with T.serial(0, ceil_div(last_tile - first_tile, group)) as g:
            first = T.bind(first_tile + g * group)
            strip = Strip(self.unit.scratch(self.blocking.k_words * width, self.word), 0, width)
            pack_strip(self.unit, self.task.a, first * height, strip, k_first * self.per_word, k_words, exact=exact)
            with T.serial(0, tirx.min(i64(group), last_tile - first)) as q:
                tile = T.bind(first + q)
                valid = T.bind(tirx.min(i64(height), i64(self.m) - tile * height))
                skip = T.bind(q * height)
                by_panels(tile, lambda row, k: strip.buffer[skip + k * width + row], valid)
