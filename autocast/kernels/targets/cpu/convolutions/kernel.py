"""Convolutions: from a `Convolution` to a TIR function that runs at the speed of the vector or matrix unit.

A convolution is a product of a matrix of pixels, each row of which holds what one output sees, with one of weights. The
matrix of pixels is never stored: the microkernel of products takes, for each row of the kernel, one run of neighbouring
words from a row of NHWC data. Each task copies the band of rows that it needs to a scratch in its cache, with zeros
around it and narrowed where that is asked for; data that needs neither is read where it lies. A matrix unit takes rows
of that matrix: those of one tile are stored, see `matrix`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64, minimum, quotient, remainder
from autocast.kernels.specs.convolutions import Convolution
from autocast.kernels.targets.cpu.convolutions.band import Band, BandSource
from autocast.kernels.targets.cpu.convolutions.blocking import Blocking, as_rows, choose_blocking, cost_of
from autocast.kernels.targets.cpu.convolutions.cutting import cut_when_run
from autocast.kernels.targets.cpu.convolutions.depthwise import Depthwise, is_depthwise
from autocast.kernels.targets.cpu.convolutions.matrix import MatrixTile
from autocast.kernels.targets.cpu.convolutions.runs import WORDS, RegisterTile
from autocast.kernels.targets.cpu.convolutions.store import store_tile, where_whole
from autocast.kernels.targets.cpu.convolutions.taps import Taps, image_shapes
from autocast.kernels.targets.cpu.convolutions.weights import PackedWeights
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet, cores, instruction_set
from autocast.kernels.targets.cpu.products.matrix import Rows, tile_registers
from autocast.kernels.targets.cpu.products.tile import Sums, Tile, heights_down_from
from autocast.kernels.targets.cpu.vector import llvm_ir, llvm_pack, llvm_tiles
from autocast.kernels.targets.cpu.vector.finish import Finish, declare, functions_ir
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, either, flat, importing, kernel_function


def convolution(
    spec: Convolution, target: tvm.target.Target, name: str, blocking: Blocking | None = None
) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(data, packed, *operands of the epilogue, out)` that computes `spec`.

    `packed` are the weights as `pack_weights` leaves them. The function is fit for `relax.call_tir`, and its attribute
    `autocast.flops` says how many operations a call takes.
    """
    isa = instruction_set(target)
    with kernel_function(name) as finished:
        generator = _Generator(spec, isa, cores(target), blocking)
        generator.emit()
    return finished().with_attr("autocast.flops", generator.flops)


@dataclass(frozen=True)
class _Chunk:
    """The outputs of one kind that a task computes: `rows` x `columns` of each image of its band."""

    kind: tuple[Taps, Taps]
    band: Band
    rows: Extent
    columns: Extent
    pixels: Extent
    first_word: int
    out_height: Extent
    out_width: Extent


@dataclass(frozen=True)
class _Place:
    """Of a panel: its packed weights' first word, the channel of the data that they begin with, its first feature.

    `left` are the features of its group from there on.
    """

    weights: tirx.Expr
    channel: tirx.Expr
    column: tirx.Expr
    left: tirx.Expr


class _Generator:
    def __init__(self, spec: Convolution, isa: InstructionSet, threads: int, blocking: Blocking | None) -> None:
        self.given, self.spec, self.unit = spec, as_rows(spec), VectorUnit(isa)
        self.threads, self.blocking = threads, blocking or choose_blocking(self.spec, isa, threads)
        self.rows: Extent = self.blocking.rows
        self.feature_tasks: Extent = self.blocking.feature_tasks
        self.layout = PackedWeights(self.spec, self.blocking, isa)

    def emit(self) -> None:
        """Emit the function's arguments and body."""
        spec, given = self.spec, self.given
        shape, out_shape = image_shapes(given)
        data = T.arg("data", T.buffer((*shape, spec.channels), spec.data_dtype))
        packed = T.arg("packed", T.buffer(self.layout.shape, self.layout.word))
        full = (*out_shape, spec.features)
        operands = declare(given.epilogue, full)
        out = T.arg("out", T.buffer(full, spec.out_dtype))
        seen = out_shape if not spec.transposed else shape
        self.flops = (
            2 * spec.channels * self.layout.features * math.prod(spec.kernel) * math.prod(seen[1:], start=seen[0])
        )
        if spec is not given:
            shape = out_shape = [1, math.prod(shape[1:], start=shape[0]), 1]
        self.data, self.packed = flat(data), flat(packed)
        self.finish = Finish(self.unit, given.epilogue, flat(out), tuple(map(flat, operands)))
        with importing(self._llvm()):
            self.shape = [self.unit.opaque(extent) for extent in shape]
            self.out_shape = [self.unit.opaque(extent) for extent in out_shape]
            if is_depthwise(spec):
                views = self.data, self.packed, self.finish
                Depthwise(self.unit, spec, self.shape, self.out_shape, *views).emit()
            else:
                self._tasks()

    def _llvm(self) -> str:
        code = functions_ir(self.spec.epilogue, self.unit) + llvm_ir.conversions_and_accesses(self.unit.isa) + WORDS
        if self.blocking.tiles:
            code += llvm_pack.packing(self.unit.isa, "bfloat16", "bfloat16") + llvm_tiles.tiles_ir()
        return code

    def _tasks(self) -> None:
        """One task for each band and each of its parts of the features."""
        blocking, spec = self.blocking, self.spec
        height = blocking.row_kinds[0].outputs(self.out_shape[1])  # the others have no more
        if None in (spec.height, spec.width):
            columns = blocking.column_kinds[0].outputs(self.out_shape[2])
            cost, shape = cost_of(spec, self.unit.isa, self.threads, blocking), (self.shape[0], height, columns)
            ways = sorted({1, min(self.threads, self.layout.panels)})
            self.rows, self.feature_tasks = cut_when_run(cost, shape, ways)
        source = BandSource(self.unit, self.data, self.shape, spec.channels, blocking, self.rows)
        self.bands = bands = quotient(height + self.rows - 1, self.rows)
        groups = self.shape[0] // blocking.images
        parts = self.feature_tasks
        count = groups * bands * parts
        if isinstance(count, int) and count == 1:
            if all(isinstance(extent, int) for extent in self.shape):
                self._task(source, i64(0), i64(0), i64(0))
                return
            # Outside of a parallel loop TIR allocates where the function begins: there no size is bound yet.
            count = tirx.call_extern("int64", "autocast_same", i64(1))
        with T.parallel(0, i64(count)) as task:
            part = T.bind(remainder(task, parts))
            band = T.bind(remainder(quotient(task, parts), bands))
            self._task(source, T.bind(quotient(task, parts * bands)), band, part)

    def _task(self, source: BandSource, group: tirx.Expr, band: tirx.Expr, part: tirx.Expr) -> None:
        with tile_registers(self.unit, self.blocking.tiles):
            self._chunks(source, group, band, part)

    def _chunks(self, source: BandSource, group: tirx.Expr, band: tirx.Expr, part: tirx.Expr) -> None:
        """A band of outputs, of one kind after the other, by part of the features."""
        blocking = self.blocking
        first_row = T.bind(band * self.rows)
        first_panel = T.bind(quotient(part * self.layout.panels, self.feature_tasks))
        last_panel = T.bind(quotient((part + 1) * self.layout.panels, self.feature_tasks))
        data = source.emit(T.bind(group * blocking.images), first_row)
        first_word = 0
        for kind in blocking.kinds():
            height, columns = (kind[axis].outputs(self.out_shape[axis + 1]) for axis in (0, 1))
            if 0 in (height, columns):  # the strides of a transposed convolution pass over a small result
                first_word += blocking.words(kind, self.layout.channels)
                continue
            rows = self.rows
            if not (isinstance(height, int) and isinstance(rows, int) and height == self.bands * rows):
                rows = T.bind(tirx.max(minimum(rows, height - first_row), i64(0)))
            pixels = blocking.images * rows * columns
            chunk = _Chunk(kind, data, rows, columns, pixels, first_word, *self.out_shape[1:])
            together = blocking.panels_together
            with T.serial(0, (last_panel - first_panel + together - 1) // together) as block:
                start = T.bind(first_panel + block * together)
                self._tiles(chunk, start, T.bind(tirx.min(i64(together), last_panel - start)))
            first_word += blocking.words(kind, self.layout.channels)

    def _tiles(self, chunk: _Chunk, first_panel: tirx.Expr, count: tirx.Expr) -> None:
        """All pixels of the chunk by `count` panels of features."""
        tallest = self.blocking.tile_rows
        known = None not in (self.spec.batch, self.spec.height, self.spec.width)
        # Tiles of all heights for all kinds are much code, and the matrix unit's have one height.
        if known or self.blocking.tiles or len(self.blocking.kinds()) > 1:
            tiles = (chunk.pixels + tallest - 1) // tallest
            self._tiles_from(chunk, 0, tallest, i64(tiles), first_panel, count)
            return
        first: tirx.Expr = i64(0)
        heights = heights_down_from(tallest, self.blocking.panel // self.unit.lanes)
        for at, height in enumerate(heights, 1):
            # What a tile of each of the lower heights can hold is left to these.
            left = tirx.max(i64(chunk.pixels) - first - sum(heights[at:]), i64(0))
            tiles = self.unit.opaque(tirx.truncdiv(left + (height - 1), i64(height)))
            self._tiles_from(chunk, first, height, tiles, first_panel, count)
            first = self.unit.opaque(first + tiles * height)

    def _tiles_from(
        self,
        chunk: _Chunk,
        first: int | tirx.Expr,
        height: int,
        tiles: tirx.Expr,
        first_panel: tirx.Expr,
        count: tirx.Expr,
    ) -> None:
        """The chunk's pixels from the `first` on, in `tiles` of `height`."""
        with T.serial(0, tiles) as tile:
            bases, places = (T.alloc_buffer((height,), "int64") for _ in range(2))
            with T.serial(0, i64(height)) as row:
                pixel = tile * height + row + first
                # Rows beyond the last pixel compute it once more, and store it where it is. There are none where tiles
                # of one height fill the chunk.
                if not (isinstance(first, int) and isinstance(chunk.pixels, int) and chunk.pixels % height == 0):
                    pixel = tirx.min(pixel, i64(chunk.pixels) - 1)
                base, place = self._addresses(chunk, T.bind(pixel))
                T.buffer_store(bases, base, [row])
                T.buffer_store(places, place, [row])
            if self.blocking.tiles:
                whole = first + (tile + 1) * height <= i64(chunk.pixels)
                self._matrix_tile(chunk, whole, first_panel, count, bases, places)
            else:
                rows = self._kernel_rows(chunk, tile)
                with T.serial(0, count) as panel:
                    self._tile(chunk, height, tile, T.bind(first_panel + panel), bases, places, rows)

    def _addresses(self, chunk: _Chunk, pixel: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """Where the data that a pixel sees begins, and where its features are stored."""
        (row_kind, column_kind), band, spec = chunk.kind, chunk.band, self.spec
        # Images side by side, so that a tile sees few rows.
        line = i64(self.blocking.images * chunk.columns)
        row = T.bind(tirx.truncdiv(pixel, line))
        image = T.bind(tirx.truncdiv(pixel - row * line, i64(chunk.columns)))
        column = T.bind(pixel - row * line - image * i64(chunk.columns))
        seen_row = row * row_kind.step + (row_kind.first - self.blocking.row_window.first)
        seen_column = column * column_kind.step + (column_kind.first - self.blocking.column_window.first)
        base = band.base + image * i64(band.image_pitch) + seen_row * i64(band.row_pitch) + seen_column * spec.channels
        out_row = (band.first_row + row) * row_kind.out_step + row_kind.out_first
        out_column = column * column_kind.out_step + column_kind.out_first
        place = ((band.first_image + image) * i64(chunk.out_height) + out_row) * i64(chunk.out_width) + out_column
        return base, place * spec.features

    def _kernel_rows(self, chunk: _Chunk, tile: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """The first row of the kernel that meets data of a tile, and the one after the last."""
        taps = chunk.kind[0]
        if not self.blocking.trims_rows:
            return i64(0), i64(taps.count)
        line = i64(self.blocking.images * chunk.columns // self.blocking.tile_rows)
        start = T.bind((chunk.band.first_row + tirx.truncdiv(tile, line)) * taps.step + taps.first)

        def rows_to(data: tirx.Expr) -> tirx.Expr:
            return tirx.truncdiv(tirx.max(data, i64(0)) + (taps.reach - 1), i64(taps.reach))

        first = T.bind(rows_to(-start))
        return first, T.bind(tirx.max(first, tirx.min(i64(taps.count), rows_to(i64(self.shape[1]) - start))))

    def _tile(
        self,
        chunk: _Chunk,
        height: int,
        tile_index: tirx.Expr,
        panel: tirx.Expr,
        bases: tirx.Buffer,
        places: tirx.Buffer,
        kernel_rows: tuple[tirx.Expr, tirx.Expr],
    ) -> None:
        """A tile of pixels by one panel: sums in registers over all taps, then the epilogue."""
        place = self._place(chunk, panel)
        self.unit.fence(self.finish.view)
        taps = RegisterTile(
            self.unit, self.blocking, chunk.kind, chunk.band, self.spec.channels, self.layout.channels, self.packed
        )
        tile = taps.multiply(height, bases, tile_index, place.channel, place.weights, kernel_rows)
        self._store(tile, places, place)

    def _place(self, chunk: _Chunk, panel: tirx.Expr) -> _Place:
        """Where a panel's features are, and what it is multiplied with."""
        layout, width = self.layout, self.blocking.panel
        weights = T.bind((panel * layout.words + chunk.first_word) * width)
        if self.spec.groups == 1:
            column = T.bind(panel * width)
            return _Place(weights, i64(0), column, T.bind(i64(layout.features) - column))
        group = T.bind(panel // layout.group_panels)
        within = T.bind((panel - group * layout.group_panels) * width)
        column = T.bind(group * layout.features + within)
        return _Place(weights, T.bind(group * layout.channels), column, T.bind(i64(layout.features) - within))

    def _store(self, sums: Tile | Sums, places: tirx.Buffer, place: _Place) -> None:
        """The epilogue of a tile by a panel."""
        rows = places.shape[0]
        where_whole(
            self.layout.features % self.blocking.panel == 0 or place.left >= self.blocking.panel,
            lambda whole: store_tile(
                self.unit,
                self.finish,
                sums,
                int(rows),
                lambda row: places[row],
                place.column,
                None if whole else place.left,
            ),
        )

    def _matrix_tile(
        self,
        chunk: _Chunk,
        whole: tirx.Expr,
        first_panel: tirx.Expr,
        count: tirx.Expr,
        bases: tirx.Buffer,
        places: tirx.Buffer,
    ) -> None:
        """A tile of pixels, all of which exist where it is `whole`, by `count` panels: by the matrix unit."""
        tile = MatrixTile(self.unit, self.blocking, chunk.kind, chunk.band, self.spec.channels, self.layout.channels)

        def panel_at(panel: tirx.Expr) -> tuple[tirx.Buffer, tirx.Expr]:
            return self.packed, self._place(chunk, T.bind(first_panel + panel)).weights

        def settle(panel: tirx.Expr, sums: Sums) -> None:
            self.unit.fence(sums.buffer)
            self._store(sums, places, self._place(chunk, T.bind(first_panel + panel)))

        def panels(rows: Rows) -> None:
            tile.across_panels(rows, count, panel_at, settle)

        if self.spec.groups > 1:  # each panel sees channels of its own
            with T.serial(0, count) as panel:
                place = self._place(chunk, T.bind(first_panel + panel))
                rows = tile.packed_rows(bases, place.channel)
                tile.across_panels(
                    rows, i64(1), lambda _: (self.packed, place.weights), lambda _, sums: settle(panel, sums)
                )
        elif not tile.lies_in_rows(self.data):
            panels(tile.packed_rows(bases, 0))
        else:
            either(whole, lambda: panels(tile.rows_in_place(bases[0])), lambda: panels(tile.packed_rows(bases, 0)))
