"""Copies pixels of the data and of the adjoint to scratches, as the products of a weight's gradient read them."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64
from autocast.kernels.specs.convolutions import Convolution
from autocast.kernels.targets.cpu.convolutions.store import where_whole
from autocast.kernels.targets.cpu.convolutions.weight_blocking import Blocking, Taps, output_size
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet
from autocast.kernels.targets.cpu.vector import llvm_ir, llvm_pack
from autocast.kernels.targets.cpu.vector.llvm_tiles import TILE
from autocast.kernels.targets.cpu.vector.unit import VectorUnit

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


def pixel_packing(isa: InstructionSet, storages: Sequence[str], compute: str) -> str:
    """The functions in LLVM IR that pack elements stored in any of `storages` as words of `compute`."""
    code = "".join(llvm_pack.packing(isa, storage, compute) for storage in storages)
    if compute == "bfloat16":
        edges = "".join(_EDGE_PAIRS.replace("FROM", storage) for storage in storages)
        code += llvm_ir.expand(edges, isa.lanes)
    return code


class PixelPacking:
    """Packs bands of `data` and `adjoint` into `packed_data` and `packed_adjoint`, all flat.

    For the matrix unit, `packed_data` holds one region, and `channels` all of them as rows of words for each channel.
    """

    def __init__(
        self,
        spec: Convolution,
        unit: VectorUnit,
        blocking: Blocking,
        taps: Taps,
        data: tirx.Buffer,
        adjoint: tirx.Buffer,
        packed_data: tirx.Buffer,
        packed_adjoint: tirx.Buffer,
        channels: tirx.Buffer | None = None,
    ) -> None:
        self.spec, self.unit, self.blocking, self.taps = spec, unit, blocking, taps
        self.data, self.adjoint = data, adjoint
        self.packed_data, self.packed_adjoint, self.channels = packed_data, packed_adjoint, channels
        self.height, self.width = output_size(spec)
        self.features = spec.features // spec.groups

    def pack_adjoint(
        self, group: tirx.Expr, image: tirx.Expr, row: tirx.Expr, rows: tirx.Expr, column: tirx.Expr, begin: tirx.Expr
    ) -> None:
        """A panel of features, for all pixels of a band."""
        spec, blocking, lanes = self.spec, self.blocking, self.unit.lanes
        image_words = blocking.image_words * blocking.panel
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
        if blocking.tiles:
            with T.serial(0, i64(blocking.images)) as i:
                words = T.bind(rows * blocking.row_words)
                to = T.bind(begin + i * image_words + words * blocking.panel)
                self._zero(self.packed_adjoint, to, (blocking.image_words - words) * blocking.panel)

    def pack_data(self, image: tirx.Expr, row: tirx.Expr, rows: tirx.Expr, channel: tirx.Expr, valid: Extent) -> None:
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
            with T.serial(0, i64(spec.kernel[1])) as column:
                # Rows of channels are made of a region when all of its rows of pixels are packed.
                region = i64(0) if blocking.tiles else T.bind(begin + column * class_rows * taps.pitch)
                seen_rows = T.bind(rows + class_rows - blocking.rows)
                with T.serial(0, seen_rows) as y:
                    source = T.bind((row + y) * step + (remainder - top))
                    line = T.bind(((image + i) * spec.height + source) * spec.width)
                    to = T.bind(region + y * taps.pitch)
                    with T.If(tirx.all(source >= 0, source < spec.height)):
                        with T.Then():
                            self._pack_row(line, column, channel, valid, to)
                        with T.Else():
                            self._zero(self.packed_data, to, i64(taps.pitch))
                if blocking.tiles:
                    self._turn(seen_rows * blocking.row_words, begin + column * (TILE * taps.channel_pitch))

    def _turn(self, words: tirx.Expr, to: tirx.Expr) -> None:
        """Rows of words along pixels for each channel, from the packed region of `words` words, ending in zeros."""
        assert self.channels is not None
        pitch = self.taps.channel_pitch
        self._zero(self.packed_data, words * TILE, i64(2 * TILE * TILE))
        with T.serial(0, tirx.min(tirx.truncdiv(words, i64(TILE)) + 2, i64(pitch // TILE))) as square:
            source = T.address_of(self.packed_data[square * (TILE * TILE)])
            target = T.address_of(self.channels[to + square * TILE])
            T.evaluate(tirx.call_extern("void", "autocast_turn", source, i64(TILE), target, i64(pitch)))

    def _zero(self, buffer: tirx.Buffer, at: tirx.Expr, words: tirx.Expr) -> None:
        T.evaluate(tirx.call_extern("handle", "memset", T.address_of(buffer[at]), tirx.const(0, "int32"), words * 4))

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


def _chosen(index: tirx.Expr, values: Sequence[int]) -> tirx.Expr:
    """The number of `values` at `index`."""
    chosen = i64(values[-1])
    for number in reversed(range(len(values) - 1)):
        chosen = tirx.Select(index.equal(number), i64(values[number]), chosen)
    return chosen
