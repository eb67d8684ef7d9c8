"""Gradients of convolutions' weights: products of data and adjoints over pixels, a band of rows at a time.

For each tap of the kernel, the gradient is the product of the adjoint's (features, pixels) with the (pixels, channels)
that the tap sees. Words run along pixels, so both are copied to scratches in the cache first: the adjoint as panels of
features, the data once for each column of the kernel, so that every tap sees a run of words with the adjoint's pitch.
Sums stay in registers for all pixels of a band, and in the result from band to band.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64
from autocast.kernels.specs.convolutions import Convolution, WeightGradient
from autocast.kernels.targets.cpu.convolutions.store import where_whole
from autocast.kernels.targets.cpu.convolutions.weight_blocking import Taps, choose_blocking, output_size
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet, cores, instruction_set
from autocast.kernels.targets.cpu.products.tile import Tile
from autocast.kernels.targets.cpu.vector import llvm_ir, llvm_pack
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, flat, importing, kernel_function

# Words at the edge of an image: of pixels that are outside, or of channels that are too many, nothing is read.
_EDGE_PAIRS = """
define linkonce_odr void @autocast_edge_FROM(ptr %a, i32 %n, ptr %b, i32 %m, ptr %dst) alwaysinline {
  %lo = call <L x i16> @autocast_halves_FROM_part(ptr %a, i32 %n)
  %hi = call <L x i16> @autocast_halves_FROM_part(ptr %b, i32 %m)
  %w = call <L x i32> @autocast_pair_FROM(<L x i16> %lo, <L x i16> %hi)
  store <L x i32> %w, ptr %dst, align 4
  ret void
}
"""


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
        code += "".join(llvm_pack.packing(self.unit.isa, storage, compute) for storage in storages)
        if blocking.pairs:
            edges = "".join(_EDGE_PAIRS.replace("FROM", storage) for storage in storages)
            code += llvm_ir.expand(edges, self.unit.lanes)
        parts = blocking.channel_tasks * blocking.panel_tasks
        with importing(code):
            self.batch = self.unit.opaque(batch)
            with T.parallel(0, i64(spec.groups * parts)) as task:
                group, part = T.bind(task // parts), T.bind(task % parts)
                self._task(group, T.bind(part // blocking.panel_tasks), T.bind(part % blocking.panel_tasks))

    def _task(self, group: tirx.Expr, channel_task: tirx.Expr, panel_task: tirx.Expr) -> None:
        """Part of the channels by part of the features of a group, over all pixels."""
        spec, blocking, taps = self.spec, self.blocking, self.taps
        first_block, last_block = _part(self.blocks, channel_task, blocking.channel_tasks)
        first_panel, last_panel = _part(self.panels, panel_task, blocking.panel_tasks)
        word = "int32" if blocking.pairs else "float32"
        slack = self.unit.lanes
        pixels = blocking.images * blocking.rows * blocking.row_words
        most_panels = math.ceil(self.panels / blocking.panel_tasks)
        self.packed_data = self.unit.scratch(blocking.images * taps.image + slack, word)
        self.packed_adjoint = self.unit.scratch(most_panels * pixels * blocking.panel, word)
        self.offsets = T.alloc_buffer((math.prod(spec.kernel),), "int64")
        for tap, (row, column) in enumerate((y, x) for y in range(spec.kernel[0]) for x in range(spec.kernel[1])):
            T.buffer_store(self.offsets, i64(taps.offset(row, column)), [tap])
        with T.serial(0, i64(self.batch // blocking.images)) as images, T.serial(0, i64(self.bands)) as band:
            image, row = T.bind(images * blocking.images), T.bind(band * blocking.rows)
            rows = T.bind(tirx.min(i64(blocking.rows), self.height - row))
            with T.serial(0, last_panel - first_panel) as panel:
                column = T.bind((first_panel + panel) * blocking.panel)
                self._pack_adjoint(group, image, row, rows, column, T.bind(panel * (pixels * blocking.panel)))
            with T.serial(first_block, last_block) as block:
                channel = T.bind(block * blocking.block)
                valid: Extent = blocking.block
                if self.channels % blocking.block:
                    valid = T.bind(tirx.min(i64(blocking.block), self.channels - channel))
                self._pack_data(image, row, rows, T.bind(group * self.channels + channel), valid)
                total = T.bind(i64(math.prod(spec.kernel)) * valid)
                with T.serial(0, (total + blocking.tile_rows - 1) // blocking.tile_rows) as tile:
                    starts, places = self._rows(group, channel, valid, total, tile)
                    with T.serial(0, last_panel - first_panel) as panel:
                        column = T.bind((first_panel + panel) * blocking.panel)
                        begin = T.bind(panel * (pixels * blocking.panel))
                        self._tile(starts, places, column, begin, rows, tirx.all(images.equal(0), band.equal(0)))

    # ---- packing ----

    def _pack_adjoint(
        self, group: tirx.Expr, image: tirx.Expr, row: tirx.Expr, rows: tirx.Expr, column: tirx.Expr, begin: tirx.Expr
    ) -> None:
        """A panel of features, for all pixels of a band."""
        spec, blocking, lanes = self.spec, self.blocking, self.unit.lanes
        image_words = blocking.rows * blocking.row_words * blocking.panel
        left = T.bind(self.features - column)

        def emit(whole: bool) -> None:
            with T.serial(0, i64(blocking.images)) as i, T.serial(0, rows) as y:
                line = T.bind(((image + i) * self.height + row + y) * self.width)
                to = T.bind(begin + i * image_words + y * (blocking.row_words * blocking.panel))
                with T.serial(0, i64(blocking.row_words)) as word:
                    pixel = T.bind(word * blocking.per_word)
                    at = T.bind((line + pixel) * spec.features + group * self.features + column)
                    inside = whole and (self.width % blocking.per_word == 0)
                    for skip in range(0, blocking.panel, lanes):
                        place = T.bind(to + word * blocking.panel + skip)
                        if inside:
                            self._whole_word(self.adjoint, at + skip, spec.features, self.packed_adjoint, place)
                            continue
                        count = T.bind(i64(lanes) if whole else left - skip)
                        next_count = tirx.Select(pixel + 1 < self.width, count, i64(0))
                        self._edge_word(
                            self.adjoint, at + skip, count, spec.features, next_count, self.packed_adjoint, place
                        )

        where_whole(self.features % blocking.panel == 0 or left >= blocking.panel, emit)

    def _pack_data(self, image: tirx.Expr, row: tirx.Expr, rows: tirx.Expr, channel: tirx.Expr, valid: Extent) -> None:
        """A block of channels of what all taps see of a band."""
        spec, blocking, taps = self.spec, self.blocking, self.taps
        step, top = spec.strides[0], spec.padding[0]
        kinds = range(len(taps.classes))
        # In the order of memory: what is written beyond the channels of a row is overwritten by the next. Loops in the
        # generated code, not here: a kernel of 7 x 7 would be a hundred copies, and LLVM's time adds up.
        with T.serial(0, i64(blocking.images)) as i, T.serial(0, i64(len(kinds))) as kind:
            class_rows = T.bind(_chosen(kind, [taps.rows(taps.classes[k]) for k in kinds]))
            remainder = T.bind(_chosen(kind, taps.classes))
            begin = T.bind(i * taps.image + _chosen(kind, [taps.begin(taps.classes[k], 0) for k in kinds]))
            with T.serial(0, i64(spec.kernel[1])) as column, T.serial(0, rows + class_rows - blocking.rows) as y:
                source = T.bind((row + y) * step + (remainder - top))
                line = T.bind(((image + i) * spec.height + source) * spec.width)
                to = T.bind(begin + (column * class_rows + y) * taps.pitch)
                with T.If(tirx.all(source >= 0, source < spec.height)):
                    with T.Then():
                        self._pack_row(line, column, channel, valid, to)
                    with T.Else():
                        address = T.address_of(self.packed_data[to])
                        zero = tirx.const(0, "int32")
                        T.evaluate(tirx.call_extern("handle", "memset", address, zero, i64(taps.pitch * 4)))

    def _pack_row(self, line: tirx.Expr, column: tirx.Expr, channel: tirx.Expr, valid: Extent, to: tirx.Expr) -> None:
        """What a column of the kernel sees of the row of pixels that begins at `line`."""
        spec, blocking = self.spec, self.blocking
        assert spec.width is not None
        step, per_word = spec.strides[1], blocking.per_word
        first = T.bind(column * spec.dilation[1] - spec.padding[1])
        apart = per_word * step  # pixels from a word to the next
        last = (per_word - 1) * step  # from a word's first to its last
        inside = T.bind(tirx.truncdiv(tirx.max(-first, i64(0)) + (apart - 1), i64(apart)))
        beyond = tirx.truncdiv(tirx.max(spec.width - last - first, i64(0)) + (apart - 1), i64(apart))
        outside = T.bind(tirx.min(beyond, i64(self.width // per_word)))
        whole = isinstance(valid, int) and valid % self.unit.lanes == 0
        with T.serial(0, i64(blocking.row_words)) as word:
            pixel = T.bind(word * apart + first)
            at = T.bind((line + pixel) * spec.channels + channel)

            def pack(is_whole: bool) -> None:
                for skip in range(0, blocking.block, self.unit.lanes):
                    place = T.bind(to + word * blocking.block + skip)
                    if is_whole:
                        self._whole_word(self.data, at + skip, step * spec.channels, self.packed_data, place)
                        continue
                    left = i64(valid) - skip
                    count = T.bind(tirx.Select(tirx.all(pixel >= 0, pixel < spec.width), left, i64(0)))
                    following = pixel + step
                    exists = tirx.all(following >= 0, following < spec.width, word * 2 + 1 < self.width)
                    next_count = T.bind(tirx.Select(exists, left, i64(0)))
                    self._edge_word(
                        self.data, at + skip, count, step * spec.channels, next_count, self.packed_data, place
                    )

            where_whole(tirx.all(word >= inside, word < outside) if whole else False, pack)

    def _whole_word(
        self, source: tirx.Buffer, at: tirx.Expr, stride: int, target: tirx.Buffer, place: tirx.Expr
    ) -> None:
        compute = "bfloat16" if self.blocking.pairs else "float32"
        addresses = T.address_of(source[at]), i64(stride), T.address_of(target[place])
        T.evaluate(tirx.call_extern("void", f"autocast_along_{source.dtype}_{compute}", *addresses))

    def _edge_word(
        self,
        source: tirx.Buffer,
        at: tirx.Expr,
        count: tirx.Expr,
        stride: int,
        next_count: tirx.Expr,
        target: tirx.Buffer,
        place: tirx.Expr,
    ) -> None:
        """A vector of words of which `count` lanes are read, and `next_count` of the pixel `stride` elements on."""
        to = T.address_of(target[place])
        first, second = T.address_of(source[at]), T.address_of(source[at + stride])
        counts = [tirx.max(n, i64(0)).astype("int32") for n in (count, next_count)]
        if self.blocking.pairs:
            name = f"autocast_edge_{source.dtype}"
            T.evaluate(tirx.call_extern("void", name, first, counts[0], second, counts[1], to))
            return
        name = f"autocast_along_{source.dtype}_float32_part"
        T.evaluate(tirx.call_extern("void", name, first, i64(stride), to, counts[0], tirx.const(1, "int32")))

    # ---- multiplying ----

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
        image_words = blocking.rows * blocking.row_words
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


def _chosen(index: tirx.Expr, values: Sequence[int]) -> tirx.Expr:
    """The number of `values` at `index`."""
    chosen = i64(values[-1])
    for number in reversed(range(len(values) - 1)):
        chosen = tirx.Select(index.equal(number), i64(values[number]), chosen)
    return chosen
