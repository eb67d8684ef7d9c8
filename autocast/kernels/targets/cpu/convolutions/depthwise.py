"""Convolutions of each channel on its own: a vector holds channels, a tile some pixels of a row of the output.

There is no product of matrices here, and sums are few for what is loaded: data are read where they lie, each once for
all pixels of a tile that see it, and rows of the kernel that meet no data are left out. Tiles at the edge of an image
read what lies beside it as zeros.
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64
from autocast.kernels.specs.convolutions import Convolution
from autocast.kernels.targets.cpu.convolutions.store import store_tile, where_whole
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet
from autocast.kernels.targets.cpu.products.tile import Tile
from autocast.kernels.targets.cpu.vector.finish import Finish
from autocast.kernels.targets.cpu.vector.unit import VectorUnit

#: Pixels of a tile: enough sums to keep the vector unit busy, few enough to leave registers for data and weights.
_PIXELS = 8


def is_depthwise(spec: Convolution) -> bool:
    """Whether `spec` is a convolution of each channel on its own."""
    return spec.groups == spec.channels == spec.features > 1 and not spec.transposed


def depthwise_shape(spec: Convolution, isa: InstructionSet) -> tuple[int, int, int]:
    """The shape of packed float32 weights: for each tap, a row of channels that whole vectors fill."""
    return (1, math.prod(spec.kernel), math.ceil(spec.channels / isa.lanes) * isa.lanes)


class Depthwise:
    """Emits the body of a depthwise convolution over (batch, height, width) data, to `out_shape`."""

    def __init__(
        self,
        unit: VectorUnit,
        spec: Convolution,
        shape: list[Extent],
        out_shape: list[Extent],
        data: tirx.Buffer,
        packed: tirx.Buffer,
        finish: Finish,
    ) -> None:
        self.unit, self.spec, self.shape, self.out_shape = unit, spec, shape, out_shape
        self.data, self.packed, self.finish = data, packed, finish
        vectors = 2 if unit.isa.registers >= 32 and spec.channels % (2 * unit.lanes) == 0 else 1
        self.block = vectors * unit.lanes
        self.row_of_weights = math.ceil(spec.channels / unit.lanes) * unit.lanes

    def emit(self) -> None:
        """A task for each row of the output and block of channels."""
        rows, blocks = i64(self.out_shape[1]), math.ceil(self.spec.channels / self.block)
        with T.parallel(0, i64(self.out_shape[0]) * rows * blocks) as task:
            line = T.bind(tirx.truncdiv(task, i64(blocks)))
            image = T.bind(tirx.truncdiv(line, rows))
            self._row(image, T.bind(line - image * rows), T.bind((task - line * blocks) * self.block))

    def _row(self, image: tirx.Expr, row: tirx.Expr, channel: tirx.Expr) -> None:
        """One row of the output, of a block of channels."""
        columns = self.out_shape[2]
        if isinstance(columns, int):
            pixels = math.ceil(columns / math.ceil(columns / _PIXELS))
            self._tiles(image, row, channel, pixels)
            return
        where_whole(columns >= _PIXELS, lambda whole: self._tiles(image, row, channel, _PIXELS if whole else 1))

    def _tiles(self, image: tirx.Expr, row: tirx.Expr, channel: tirx.Expr, pixels: int) -> None:
        """All tiles of a row; the last one begins early enough to be whole, and computes some pixels once more."""
        spec, columns, width = self.spec, i64(self.out_shape[2]), i64(self.shape[2])
        reach = (pixels - 1) * spec.strides[1] + (spec.kernel[1] - 1) * spec.dilation[1] + 1
        with T.serial(0, tirx.truncdiv(columns + (pixels - 1), i64(pixels))) as tile:
            first = T.bind(tirx.min(tile * pixels, columns - pixels))
            seen = T.bind(first * spec.strides[1] - spec.padding[1])
            inside = tirx.all(seen >= 0, seen + reach <= width)
            if spec.channels % self.block:
                inside = tirx.all(inside, channel + self.block <= spec.channels)
            where_whole(inside, lambda whole: self._tile(image, row, channel, first, seen, pixels, whole))

    def _tile(
        self,
        image: tirx.Expr,
        row: tirx.Expr,
        channel: tirx.Expr,
        first: tirx.Expr,
        seen: tirx.Expr,
        pixels: int,
        whole: bool,
    ) -> None:
        """Pixels from `first` on, which see data from column `seen` on; `whole`: all data and channels exist."""
        spec, unit = self.spec, self.unit
        (high, wide), (down, right), stride = spec.kernel, spec.dilation, spec.strides[1]
        tile = Tile(unit, pixels, self.block)
        unit.fence(self.finish.view)
        tile.clear()
        top = T.bind(row * spec.strides[0] - spec.padding[0])
        first_tap = T.bind(tirx.truncdiv(tirx.max(-top, i64(0)) + (down - 1), i64(down)))
        beyond = tirx.truncdiv(tirx.max(i64(self.shape[1]) - top, i64(0)) + (down - 1), i64(down))
        left = T.bind(i64(spec.channels) - channel)
        with T.serial(first_tap, tirx.max(first_tap, tirx.min(i64(high), beyond))) as i:
            line = T.bind((image * self.shape[1] + top + i * down) * i64(self.shape[2]))
            weights = T.bind(i * (wide * self.row_of_weights) + channel)
            for column in range((pixels - 1) * stride + (wide - 1) * right + 1):
                uses = [(p, t) for p in range(pixels) for t in range(wide) if p * stride + t * right == column]
                if not uses:
                    continue
                at = T.bind((line + seen + column) * spec.channels + channel)
                count: Extent | None = None
                if not whole:
                    inside = tirx.all(seen + column >= 0, seen + column < i64(self.shape[2]))
                    count = T.bind(tirx.Select(inside, left, i64(0)))
                for vector in range(tile.vectors):
                    skip = vector * unit.lanes
                    value = T.bind(unit.load(self.data, at + skip, None if count is None else count - skip))
                    for pixel, tap in uses:
                        weight = self.packed[unit.ramp(weights + (tap * self.row_of_weights + skip))]
                        tile[pixel, vector] = unit.multiply_add(value, weight, tile[pixel, vector])
        begin = T.bind(((image * self.out_shape[1] + row) * self.out_shape[2] + first) * i64(spec.channels))
        store_tile(
            unit, self.finish, tile, pixels, lambda p: begin + p * spec.channels, channel, None if whole else left
        )
