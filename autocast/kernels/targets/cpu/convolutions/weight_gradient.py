"""Gradients of convolutions' weights: products of data and adjoints over pixels, a band of rows at a time.

For each tap of the kernel, the gradient is the product of the adjoint's (features, pixels) with the (pixels, channels)
that the tap sees. Words run along pixels, so both are copied to scratches in the cache first: the adjoint as panels of
features, the data once for each column of the kernel, so that every tap sees a run of words with the adjoint's pitch.
Sums stay in registers for all pixels of a band, and in the result from band to band.
"""

from __future__ import annotations

import math

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64
from autocast.kernels.specs.convolutions import Convolution, WeightGradient
from autocast.kernels.targets.cpu.convolutions.pixel_packing import PixelPacking, pixel_packing
from autocast.kernels.targets.cpu.convolutions.store import where_whole
from autocast.kernels.targets.cpu.convolutions.weight_blocking import Taps, choose_blocking, output_size
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet, cores, instruction_set
from autocast.kernels.targets.cpu.products.matrix import Rows, multiply_tiles, tile_registers
from autocast.kernels.targets.cpu.products.tile import Sums, Tile
from autocast.kernels.targets.cpu.vector import llvm_ir, llvm_tiles
from autocast.kernels.targets.cpu.vector.llvm_tiles import TILE
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, either, flat, importing, kernel_function


def weight_gradient(spec: Convolution, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(data, adjoint, gradient)`, fit for `relax.call_tir`.

    Parameters
    ----------
    spec
        The convolution, not transposed and of known height and width; `out_dtype` is that of the adjoint of its output.
    target, name
        An LLVM target, and the function's name.

    Returns
    -------
    PrimFunc
        It takes NHWC data and adjoint. The gradient is float32, of shape `WeightGradient(spec).shape`: features last.
    """
    with kernel_function(name) as finished:
        generator = _Generator(spec, instruction_set(target), cores(target))
        generator.emit()
    return finished().with_attr("autocast.flops", generator.flops)


class _Generator:
    def __init__(self, spec: Convolution, isa: InstructionSet, threads: int) -> None:
        self.spec, self.unit = spec, VectorUnit(isa)
        self.blocking = choose_blocking(spec, isa, threads)
        self.taps = Taps(spec, self.blocking)
        self.height, self.width = output_size(spec)
        self.channels, self.features = spec.channels // spec.groups, spec.features // spec.groups
        self.blocks = math.ceil(self.channels / self.blocking.block)
        self.panels = math.ceil(self.features / self.blocking.panel)
        self.bands = math.ceil(self.height / self.blocking.rows)

    def emit(self) -> None:
        """Emit the function's arguments, and a task for each part of the result."""
        spec, blocking = self.spec, self.blocking
        batch: Extent = tirx.Var("batch", "int64") if spec.batch is None else spec.batch
        data = T.arg("data", T.buffer((batch, spec.height, spec.width, spec.channels), spec.data_dtype))
        adjoint = T.arg("adjoint", T.buffer((batch, self.height, self.width, spec.features), spec.out_dtype))
        out = T.arg("gradient", T.buffer(WeightGradient(spec).shape, "float32"))
        per_image = 2 * self.channels * spec.features * math.prod(spec.kernel) * self.height * self.width
        self.flops = per_image * batch
        self.data, self.adjoint, self.out = flat(data), flat(adjoint), flat(out)
        compute = "bfloat16" if blocking.pairs else "float32"
        storages = sorted({spec.data_dtype, spec.out_dtype})
        code = llvm_ir.conversions_and_accesses(self.unit.isa)
        code += pixel_packing(self.unit.isa, storages, compute)
        code += llvm_tiles.tiles_ir() if blocking.tiles else ""
        parts = blocking.channel_tasks * blocking.panel_tasks
        with importing(code):
            self.batch = self.unit.opaque(batch)
            registers = tile_registers(self.unit, blocking.tiles)
            with T.parallel(0, i64(spec.groups * parts)) as task, registers:
                group, part = T.bind(task // parts), T.bind(task % parts)
                self._task(group, T.bind(part // blocking.panel_tasks), T.bind(part % blocking.panel_tasks))

    def _task(self, group: tirx.Expr, channel_task: tirx.Expr, panel_task: tirx.Expr) -> None:
        """Part of the channels by part of the features of a group, over all pixels."""
        spec, blocking, taps = self.spec, self.blocking, self.taps
        first_block, last_block = _part(self.blocks, channel_task, blocking.channel_tasks)
        first_panel, last_panel = _part(self.panels, panel_task, blocking.panel_tasks)
        word = "int32" if blocking.pairs else "float32"
        slack = self.unit.lanes
        pixels = blocking.images * blocking.image_words
        most_panels = math.ceil(self.panels / blocking.panel_tasks)
        self.packed_data = self.unit.scratch(blocking.images * taps.image + slack, word)
        self.packed_adjoint = self.unit.scratch(most_panels * pixels * blocking.panel, word)
        flats: tuple[tirx.Buffer, ...] = self.data, self.adjoint, self.packed_data, self.packed_adjoint
        if blocking.tiles:
            region = self.unit.scratch(TILE * (taps.channel_pitch + 2 * TILE), word)
            flats = self.data, self.adjoint, region, self.packed_adjoint, self.packed_data
        packing = PixelPacking(spec, self.unit, blocking, taps, *flats)
        self.offsets = T.alloc_buffer((math.prod(spec.kernel),), "int64")
        for tap, (row, column) in enumerate((y, x) for y in range(spec.kernel[0]) for x in range(spec.kernel[1])):
            T.buffer_store(self.offsets, i64(taps.offset(row, column)), [tap])
        with T.serial(0, i64(self.batch // blocking.images)) as images, T.serial(0, i64(self.bands)) as band:
            image, row = T.bind(images * blocking.images), T.bind(band * blocking.rows)
            rows = T.bind(tirx.min(i64(blocking.rows), self.height - row))
            with T.serial(0, last_panel - first_panel) as panel:
                column = T.bind((first_panel + panel) * blocking.panel)
                packing.pack_adjoint(group, image, row, rows, column, T.bind(panel * (pixels * blocking.panel)))
            with T.serial(first_block, last_block) as block:
                channel = T.bind(block * blocking.block)
                valid: Extent = blocking.block
                if self.channels % blocking.block:
                    valid = T.bind(tirx.min(i64(blocking.block), self.channels - channel))
                packing.pack_data(image, row, rows, T.bind(group * self.channels + channel), valid)
                is_first = tirx.all(images.equal(0), band.equal(0))
                emit = self._matrix_tiles if blocking.tiles else self._tiles
                emit(group, channel, valid, (first_panel, last_panel), rows, is_first)

    def _tiles(
        self,
        group: tirx.Expr,
        channel: tirx.Expr,
        valid: Extent,
        panels: tuple[tirx.Expr, tirx.Expr],
        rows: tirx.Expr,
        is_first: tirx.Expr,
    ) -> None:
        """All taps of a block of channels by panels of features: what `rows` of a band add to the gradient."""
        blocking = self.blocking
        total = T.bind(i64(math.prod(self.spec.kernel)) * valid)
        with T.serial(0, (total + blocking.tile_rows - 1) // blocking.tile_rows) as tile:
            starts, places = self._rows(group, channel, valid, total, tile)
            with T.serial(0, panels[1] - panels[0]) as panel:
                column = T.bind((panels[0] + panel) * blocking.panel)
                begin = T.bind(panel * (blocking.images * blocking.image_words * blocking.panel))
                self._tile(starts, places, column, begin, rows, is_first)

    def _matrix_tiles(
        self,
        group: tirx.Expr,
        channel: tirx.Expr,
        valid: Extent,
        panels: tuple[tirx.Expr, tirx.Expr],
        rows: tirx.Expr,
        is_first: tirx.Expr,
    ) -> None:
        """The same by the matrix unit: a tile of rows are the channels of one tap or of two."""
        unit, blocking, taps = self.unit, self.blocking, self.taps
        count, height, width = math.prod(self.spec.kernel), blocking.tile_rows, blocking.panel
        sums = Sums(unit.scratch(height * width, "float32"), 0, width)
        together = height // TILE
        with T.serial(0, i64(math.ceil(count / together))) as tile, T.serial(0, panels[1] - panels[0]) as panel:
            tap = T.bind(tile * together)
            start = T.bind(self.offsets[tap])
            skip = T.bind(self.offsets[tirx.min(tap + (together - 1), i64(count - 1))] - start)
            column = T.bind((panels[0] + panel) * width)
            begin = T.bind(panel * (blocking.images * blocking.image_words * width))

            with T.serial(0, i64(blocking.images)) as image:
                seen = Rows(self.packed_data, T.bind(start + image * taps.image), taps.channel_pitch, TILE, skip)
                adjoint = T.bind(begin + image * (blocking.image_words * width))
                words = rows * blocking.row_words
                multiply_tiles(seen, height, self.packed_adjoint, adjoint, words, sums, image > 0)
            unit.fence(sums.buffer)
            left = T.bind(self.features - column)

            def settle(whole: bool, *, adds: bool) -> None:
                with T.serial(0, tirx.min(i64(together), count - tap)) as t, T.serial(0, i64(valid)) as inner:
                    place = ((group * self.channels + channel + inner) * count + tap + t) * self.features + column
                    for vector in range(0, width, unit.lanes):
                        at, lanes = T.bind(place + vector), None if whole else left - vector
                        value = sums.buffer[unit.ramp((t * TILE + inner) * width + vector)]
                        unit.store(self.out, at, value + unit.load(self.out, at, lanes) if adds else value, lanes)

            def emit(whole: bool) -> None:
                either(is_first, lambda: settle(whole, adds=False), lambda: settle(whole, adds=True))

            where_whole(self.features % width == 0 or left >= width, emit)

    def _rows(
        self, group: tirx.Expr, channel: tirx.Expr, valid: Extent, total: tirx.Expr, tile: tirx.Expr
    ) -> tuple[tirx.Buffer, tirx.Buffer]:
        """For each (tap, channel) of a tile, where its words begin and where its sums are stored."""
        height, taps = self.blocking.tile_rows, math.prod(self.spec.kernel)
        starts, places = (T.alloc_buffer((height,), "int64") for _ in range(2))
        with T.serial(0, i64(height)) as r:
            # Rows beyond the last one compute it once more.
            row = T.bind(tirx.min(tile * height + r, total - 1))
            tap = T.bind(tirx.truncdiv(row, i64(valid)))
            inner = T.bind(row - tap * valid)
            T.buffer_store(starts, self.offsets[tap] + inner, [r])
            place = (group * self.channels + channel + inner) * taps + tap
            T.buffer_store(places, place * self.features, [r])
        return starts, places

    def _tile(
        self,
        starts: tirx.Buffer,
        places: tirx.Buffer,
        column: tirx.Expr,
        begin: tirx.Expr,
        rows: tirx.Expr,
        is_first: tirx.Expr,
    ) -> None:
        """A register tile: sums over all pixels of a band."""
        unit, blocking, taps = self.unit, self.blocking, self.taps
        left = T.bind(self.features - column)
        tile = Tile(unit, blocking.tile_rows, blocking.panel)
        unit.fence(self.out)
        skips = [vector * unit.lanes for vector in range(tile.vectors)]

        def add(whole: bool) -> None:
            for row in range(tile.rows):
                for vector, skip in enumerate(skips):
                    count = None if whole else left - skip
                    tile[row, vector] = tile[row, vector] + unit.load(self.out, places[row] + column + skip, count)

        def store(whole: bool) -> None:
            for row in range(tile.rows):
                for vector, skip in enumerate(skips):
                    count = None if whole else left - skip
                    unit.store(self.out, places[row] + column + skip, tile[row, vector], count)

        is_whole = self.features % blocking.panel == 0 or left >= blocking.panel
        tile.clear()
        image_words = blocking.image_words
        with T.serial(0, i64(blocking.images)) as image:
            data = [T.bind(starts[row] + image * taps.image) for row in range(tile.rows)]
            tile.multiply(
                lambda row, k: self.packed_data[data[row] + k * blocking.block],
                self.packed_adjoint,
                T.bind(begin + image * (image_words * blocking.panel)),
                rows * blocking.row_words,
            )
        with T.If(tirx.Not(is_first)), T.Then():
            where_whole(is_whole, add)
        where_whole(is_whole, store)


def _part(count: int, part: tirx.Expr, parts: int) -> tuple[tirx.Expr, tirx.Expr]:
    """The first of `count` things that belong to a part, and the one after the last."""
    return T.bind(part * count // parts), T.bind((part + 1) * count // parts)
