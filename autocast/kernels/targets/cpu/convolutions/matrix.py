"""Tiles of pixels for the matrix unit: what each pixel sees, side by side along k, as rows of a product.

Where pixels see nothing but themselves, their channels are such rows where they lie. Elsewhere the runs of neighbouring
elements that a pixel sees are copied one after the other, once for all panels of features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i32, i64
from autocast.kernels.targets.cpu.convolutions.runs import PixelTile
from autocast.kernels.targets.cpu.products.matrix import Rows, across_panels, add_sums, panels_of_sums
from autocast.kernels.targets.cpu.products.tile import BLOCK_WORDS, MOST_WORDS, Sums
from autocast.kernels.targets.cpu.vector.llvm_tiles import TILE
from autocast.kernels.targets.cpu.vector.unit import either, flat


class MatrixTile(PixelTile):
    """Emits the products of a tile of pixels of one kind by the matrix unit."""

    @property
    def height(self) -> int:
        """Pixels of a tile."""
        return self.blocking.tile_rows

    @property
    def words(self) -> int:
        """Words along k: whole tiles."""
        return self.blocking.words(self.kind, self.channels)

    def lies_in_rows(self, data: tirx.Buffer) -> bool:
        """Whether neighbouring pixels of the band, which is `data` itself, are rows as tile registers load them."""
        whole = self.pixel == self.channels and self.channels % (2 * TILE) == 0
        return self.blocking.in_rows and whole and self.band.view.same_as(data)

    def rows_in_place(self, base: tirx.Expr) -> Rows:
        """The rows of pixels that begin at element `base` of the band and adjoin."""
        return Rows(flat(self.band.view, "int32", 2), T.bind(tirx.truncdiv(base, i64(2))), self.pixel // 2, TILE)

    def packed_rows(self, bases: tirx.Buffer, channel: Extent) -> Rows:
        """Emit code that copies what each pixel sees, from its place in `bases` and `channel` on, to a scratch."""
        # Rows that are a power of two apart would compete for the same places of the first cache.
        rows = Rows(self.unit.scratch(self.height * (self.words + TILE), "int32"), 0, self.words + TILE, TILE)
        high, wide, run = self.blocking.loops(self.kind, self.channels)
        row_kind, column_kind = self.kind
        down, right = i64(self.band.row_pitch * row_kind.reach), column_kind.reach * self.pixel
        run_words = math.ceil(run / 2)
        with T.serial(0, i64(self.height)) as row:
            base, to = T.bind(bases[row] + channel), T.bind(row * rows.pitch)
            if high * wide:
                with T.serial(0, i64(high)) as i, T.serial(0, i64(wide)) as j:
                    start, at = T.bind(base + i * down + j * right), T.bind(to + (i * wide + j) * run_words)
                    self._copy(start, rows.buffer, at, run)
            if high * wide * run_words < self.words:
                self._store(rows.buffer, to + high * wide * run_words, T.broadcast(tirx.const(0, "int32"), TILE))
        return rows

    def _copy(self, start: tirx.Expr, to: tirx.Buffer, at: tirx.Expr, run: int) -> None:
        """One run, and zeros to the end of its last vector: the next run overwrites them."""
        elements = 2 * TILE

        def copy(vector: Extent, *count: tirx.Expr) -> None:
            name = "autocast_words_bfloat16_bfloat16" + "_part" * len(count)
            place = T.address_of(self.band.view[start + vector * elements])
            self._store(to, at + vector * TILE, tirx.call_extern(f"int32x{TILE}", name, place, *count))

        with T.serial(0, i64(run // elements)) as vector:
            copy(vector)
        if run % elements:
            copy(run // elements, i32(run % elements))

    def _store(self, to: tirx.Buffer, at: tirx.Expr, value: tirx.Expr) -> None:
        # TVM's StorageRewrite takes vectors that are stored to a scratch for aligned ones.
        T.evaluate(tirx.call_extern("void", "autocast_put_words", T.address_of(to[at]), value))

    def across_panels(
        self,
        rows: Rows,
        panels: tirx.Expr,
        panel_at: Callable[[tirx.Expr], tuple[tirx.Buffer, tirx.Expr]],
        settle: Callable[[tirx.Expr, Sums], None],
    ) -> None:
        """Emit code that multiplies the rows with packed panels of weights, and settles the sums of each.

        Where words are many, sums are those of blocks: see `products.matrix.across_panels` for the arguments.
        """
        unit, height, width = self.unit, self.height, self.blocking.panel
        blocks = 1 if self.words <= MOST_WORDS else math.ceil(self.words / BLOCK_WORDS)
        words = math.ceil(self.words / blocks / TILE) * TILE
        held = panels_of_sums(words, self.blocking.panels_together)
        sums = Sums(unit.scratch(held * height * width, "float32"), 0, width)
        if blocks == 1:
            across_panels(rows, height, words, panels, panel_at, sums, settle)
            return
        totals = unit.scratch(self.blocking.panels_together * height * width, "float32")
        with T.serial(0, i64(blocks)) as block:
            first = T.bind(block * words)
            count = T.bind(tirx.min(i64(words), self.words - first))

            def settle_block(panel: tirx.Expr, part: Sums) -> None:
                total = Sums(totals, T.bind(panel * (height * width)), width)
                add, copy = (partial(add_sums, unit, height, total, part, copy=copy) for copy in (False, True))
                either(block > 0, add, copy)
                either(block.equal(blocks - 1), lambda: settle(panel, total))

            def block_at(panel: tirx.Expr) -> tuple[tirx.Buffer, tirx.Expr]:
                weights, begin = panel_at(panel)
                return weights, begin + first * width

            part = replace(rows, start=T.bind(rows.start + first))  # rows are whole, so a step is a tile's words
            across_panels(part, height, count, panels, block_at, sums, settle_block)
