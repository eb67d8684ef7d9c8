"""Bands: the rows of data that a task sees, where they lie or copied to its scratch with zeros around them."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64, minimum
from autocast.kernels.targets.cpu.convolutions.blocking import Blocking
from autocast.kernels.targets.cpu.vector.unit import VectorUnit


@dataclass(frozen=True)
class Band:
    """Rows of some images in memory, ready to be multiplied.

    Attributes
    ----------
    view, base
        Flat memory, and the element of it where the first row's window begins.
    row_pitch, image_pitch
        Elements from row to row and from image to image.
    first_image, first_row
        The first image, and the first of the output's rows (of each kind).
    """

    view: tirx.Buffer
    base: tirx.Expr
    row_pitch: Extent
    image_pitch: Extent
    first_image: tirx.Expr
    first_row: tirx.Expr


class BandSource:
    """Emits the code that gives a task its band of (images, height, width) pixels of `channels` each.

    `rows` are the rows of outputs (of each kind) of a band.
    """

    def __init__(
        self, unit: VectorUnit, data: tirx.Buffer, shape: list[Extent], channels: int, blocking: Blocking, rows: Extent
    ) -> None:
        self.unit, self.data, self.blocking, self.rows = unit, data, blocking, rows
        self.height, self.width, self.channels = shape[1], shape[2], channels
        self.word_dtype = "bfloat16" if blocking.pairs else "float32"
        high, wide = blocking.row_window, blocking.column_window
        needs_rows = (high.first < 0 or high.beyond > 0) and not blocking.trims_rows
        needs_columns = (wide.first < 0 or wide.beyond > 0) and blocking.places is None
        self.in_place = not needs_rows and not needs_columns and str(data.dtype) == self.word_dtype

    def emit(self, first_image: tirx.Expr, first_row: tirx.Expr) -> Band:
        """The band of the outputs' rows (of each kind) from `first_row` on, of images from `first_image` on."""
        rows, columns = self.blocking.row_window, self.blocking.column_window
        row = T.bind(first_row * rows.step + rows.first)
        if self.in_place:
            pitch = self.width * self.channels
            image_pitch = self.height * pitch
            base = T.bind(first_image * i64(image_pitch) + row * i64(pitch) + columns.first * self.channels)
            return Band(self.data, base, pitch, image_pitch, first_image, first_row)
        high = (self.rows - 1) * rows.step + rows.span
        pitch = (self.width - columns.first + columns.beyond) * self.channels
        scratch = self.unit.scratch(self.blocking.images * high * pitch + 2 * self.unit.lanes, self.word_dtype)
        band = Band(scratch, i64(0), pitch, high * pitch, first_image, first_row)
        with T.serial(0, i64(self.blocking.images)) as image:
            source = T.bind((first_image + image) * i64(self.height))
            self._copy_image(band, T.bind(image * i64(band.image_pitch)), source, row, high)
        return band

    def _copy_image(self, band: Band, begin: tirx.Expr, source: tirx.Expr, row: tirx.Expr, high: Extent) -> None:
        """Rows from `row` on of the image whose first row is the `source`-th of all, to `begin` in the scratch."""
        columns, pitch = self.blocking.column_window, i64(band.row_pitch)
        # Rows above the image, in it, and below it; a negative `left` cuts columns off.
        above = T.bind(tirx.min(tirx.max(-row, i64(0)), i64(high)))
        below = T.bind(tirx.max(minimum(high, i64(self.height) - row), above))
        left, right = -columns.first * self.channels, columns.beyond * self.channels
        wide = self.width * self.channels
        self._zero(band, begin, above * pitch)
        self._zero(band, begin + below * pitch, (high - below) * pitch)
        if left == right == 0:
            start = (source + row + above) * i64(wide)
            self._copy(band, begin + above * pitch, start, (below - above) * i64(wide))
            return
        with T.serial(above, below) as r:
            to = T.bind(begin + r * pitch)
            start = T.bind((source + row + r) * i64(wide))
            if left > 0:
                self._zero(band, to, i64(left))
            self._copy(band, to + max(left, 0), start + max(-left, 0), i64(wide - max(-left, 0)))
            if right:
                self._zero(band, to + left + i64(wide), i64(right))

    def _bytes(self, elements: tirx.Expr) -> tirx.Expr:
        return elements * (2 if self.blocking.pairs else 4)

    def _zero(self, band: Band, at: tirx.Expr, elements: tirx.Expr) -> None:
        address = T.address_of(band.view[at])
        T.evaluate(tirx.call_extern("handle", "memset", address, tirx.const(0, "int32"), self._bytes(elements)))

    def _copy(self, band: Band, at: tirx.Expr, start: tirx.Expr, elements: tirx.Expr) -> None:
        if str(self.data.dtype) == self.word_dtype:
            addresses = T.address_of(band.view[at]), T.address_of(self.data[start])
            T.evaluate(tirx.call_extern("handle", "memcpy", *addresses, self._bytes(elements)))
            return
        unit, elements = self.unit, T.bind(elements)
        whole = T.bind(elements // unit.lanes)
        with T.serial(0, whole) as i:
            unit.store(band.view, at + i * unit.lanes, unit.load(self.data, start + i * unit.lanes))
        done = T.bind(whole * unit.lanes)
        rest = T.bind(elements - done)
        with T.If(rest > 0), T.Then():
            unit.store(band.view, at + done, unit.load(self.data, start + done, rest), rest)
