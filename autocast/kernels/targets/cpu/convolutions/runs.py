"""Runs: the products of neighbouring elements of the data, along a row of the kernel, with neighbouring weights."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64
from autocast.kernels.targets.cpu.convolutions.band import Band
from autocast.kernels.targets.cpu.convolutions.blocking import Blocking
from autocast.kernels.targets.cpu.convolutions.taps import Taps
from autocast.kernels.targets.cpu.products.tile import BLOCK_WORDS, MOST_WORDS, BlockedSums, Tile
from autocast.kernels.targets.cpu.vector.unit import VectorUnit

#: LLVM IR: a pair of neighbouring elements of 16 bits, aligned to one of them, and the last one of an odd number.
WORDS = """
define linkonce_odr i32 @autocast_pair_at(ptr %p) alwaysinline {
  %w = load i32, ptr %p, align 2
  ret i32 %w
}
define linkonce_odr i32 @autocast_last_at(ptr %p) alwaysinline {
  %h = load i16, ptr %p, align 2
  %w = zext i16 %h to i32
  ret i32 %w
}
"""


@dataclass(frozen=True)
class Runs:
    """Adds runs to the sums of a tile of pixels.

    Attributes
    ----------
    blocking, channels
        The kernel's blocking, and the channels of its data.
    weights
        Packed, as a vector of words.
    band
        The data.
    sums
        What is added to.
    """

    blocking: Blocking
    channels: int
    weights: tirx.Buffer
    band: Band
    sums: BlockedSums

    def add(
        self,
        starts: list[tirx.Expr],
        pixels: Collection[int],
        weights: tirx.Expr,
        run: int,
    ) -> None:
        """Add the products of one run of neighbouring elements of `pixels`' data and of neighbouring weights."""
        per_word = self.blocking.per_word
        words, tile = run // per_word, self.sums.tile

        def word(row: int, k: tirx.Expr) -> tirx.Expr | None:
            return self._word(starts[row] + k * per_word) if row in pixels else None

        def last(row: int, k: tirx.Expr) -> tirx.Expr:
            return self._word(starts[row] + (run - 1), last=True)

        if words > MOST_WORDS:
            with T.serial(0, i64(words // BLOCK_WORDS)) as block:
                first = T.bind(block * BLOCK_WORDS)
                begin = T.bind(weights + first * self.blocking.panel)
                tile.multiply(lambda row, k: word(row, first + k), self.weights, begin, BLOCK_WORDS)
                self.sums.end_block()
        rest = words % BLOCK_WORDS if words > MOST_WORDS else words
        if rest:
            begin = weights + (words - rest) * self.blocking.panel
            tile.multiply(lambda row, k: word(row, words - rest + k), self.weights, begin, rest)
        if run % per_word:
            tile.multiply(last, self.weights, weights + words * self.blocking.panel, 1)

    def add_trimmed(self, starts: list[tirx.Expr], weights: tirx.Expr, tile_index: tirx.Expr) -> None:
        """The run of a row of the kernel, without what lies beside the image; that depends on the tile's place."""
        assert self.blocking.places is not None
        places, channels = self.blocking.places, self.channels
        tap_words = channels // self.blocking.per_word * self.blocking.panel
        found: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for index, taps in enumerate(places):
            found.setdefault(taps, []).append(index)
        place = T.bind(tirx.truncmod(tile_index, i64(len(places))))

        def emit(taps: tuple[tuple[int, ...], ...]) -> None:
            if all(len(pixels) == self.sums.tile.rows for pixels in taps):
                self.add(starts, range(self.sums.tile.rows), weights, len(taps) * channels)
                return
            for tap, pixels in enumerate(taps):
                moved = [start + tap * channels for start in starts]
                self.add(moved, pixels, weights + tap * tap_words, channels)

        def choose(kinds: list[tuple[tuple[tuple[int, ...], ...], list[int]]]) -> None:
            (taps, indices), *others = kinds
            if not others:
                emit(taps)
                return
            with T.If(tirx.any(*(place.equal(index) for index in indices))):
                with T.Then():
                    emit(taps)
                with T.Else():
                    choose(others)

        choose(sorted(found.items(), key=lambda item: len(item[1])))

    def _word(self, index: tirx.Expr, last: bool = False) -> tirx.Expr:
        if not self.blocking.pairs:
            return self.band.view[index]
        name = "autocast_last_at" if last else "autocast_pair_at"
        return tirx.call_extern("int32", name, T.address_of(self.band.view[index]))


@dataclass(frozen=True)
class PixelTile:
    """A tile of pixels of one kind.

    Attributes
    ----------
    unit, blocking
        Of the kernel.
    kind
        The taps along height and width.
    band
        The data, `pixel` elements from pixel to pixel.
    channels
        Of a group; a pixel has those of all groups.
    """

    unit: VectorUnit
    blocking: Blocking
    kind: tuple[Taps, Taps]
    band: Band
    pixel: int
    channels: int


@dataclass(frozen=True)
class RegisterTile(PixelTile):
    """Emits the products of a tile whose sums stay in registers over all taps; `weights` are packed, as words."""

    weights: tirx.Buffer

    def multiply(
        self,
        height: int,
        bases: tirx.Buffer,
        tile_index: tirx.Expr,
        channel: tirx.Expr,
        first_word: tirx.Expr,
        kernel_rows: tuple[tirx.Expr, tirx.Expr],
    ) -> Tile:
        """The sums of `height` pixels, whose data begin at `bases` and `channel`, by the panel from `first_word` on."""
        blocking = self.blocking
        tile = Tile(self.unit, height, blocking.panel)
        high, wide, run = blocking.loops(self.kind, self.channels)
        words = math.ceil(run / blocking.per_word)
        sums = BlockedSums(tile, high * wide * words)
        runs = Runs(blocking, self.pixel, self.weights, self.band, sums)
        row_kind, column_kind = self.kind
        down, right = i64(self.band.row_pitch * row_kind.reach), column_kind.reach * self.pixel

        def multiply(distance: tirx.Expr, tap: Extent) -> None:
            starts = [T.bind(bases[row] + distance) for row in range(tile.rows)]
            begin = T.bind(first_word + tap * (words * blocking.panel))
            if blocking.places is None:
                runs.add(starts, range(tile.rows), begin, run)
            else:
                runs.add_trimmed(starts, begin, tile_index)

        if high * wide == 1 and not blocking.trims_rows:
            multiply(channel, 0)
        elif high * wide:
            with T.serial(*kernel_rows) as i:
                if wide == 1:
                    multiply(T.bind(channel + i * down), i)
                    sums.end_run(i, words)
                else:
                    with T.serial(0, i64(wide)) as j:
                        multiply(T.bind(channel + i * down + j * right), i * wide + j)
                        sums.end_run(i * wide + j, words)
        sums.finish()
        return tile
