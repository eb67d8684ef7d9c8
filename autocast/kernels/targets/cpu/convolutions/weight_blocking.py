"""How the gradient of a convolution's weights is cut up, and where its packed data lie."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autocast.kernels.specs.convolutions import Convolution
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet
from autocast.kernels.targets.cpu.vector.llvm_tiles import BLOCK, TILE

#: Rows of a register tile by instruction set and by vectors across, and the time of a step, relatively.
_TILES = {
    "amx": {4: (6, 1.0), 3: (8, 1.0), 2: (12, 1.05), 1: (24, 1.4)},
    "avx512bf16": {4: (6, 1.0), 3: (8, 1.0), 2: (12, 1.05), 1: (24, 1.4)},
    "avx512": {4: (6, 1.0), 3: (8, 1.0), 2: (12, 1.05), 1: (24, 1.4)},
    "avx2": {2: (6, 1.0), 1: (12, 1.4)},
    "generic": {2: (4, 1.0), 1: (8, 1.4)},
}
#: Channels that are packed together: a cache line of words.
_CHANNELS = 16
#: Bytes of a band's packed data (of one block of channels) and adjoint that stay in the level-2 cache side by side.
_DATA_BYTES, _ADJOINT_BYTES = 256 << 10, 448 << 10


@dataclass(frozen=True)
class Blocking:
    """How a weight gradient is cut up.

    Attributes
    ----------
    pairs
        Whether a word is a pair of bfloat16 pixels, or a float32 number.
    images, rows
        A band: rows of outputs of some images.
    row_words
        Words of a row of outputs.
    block
        Channels that are packed together.
    tile_rows, panel
        The register tile: (tap, channel) by features.
    channel_tasks, panel_tasks
        Tasks that share a group, by its channels and by its features.
    tiles
        Whether the matrix unit multiplies, which takes rows of words along pixels, for each of 16 channels.
    """

    pairs: bool
    images: int
    rows: int
    row_words: int
    block: int
    tile_rows: int
    panel: int
    channel_tasks: int
    panel_tasks: int
    tiles: bool = False

    @property
    def per_word(self) -> int:
        """Pixels of a word."""
        return 2 if self.pairs else 1

    @property
    def image_words(self) -> int:
        """Words of an image's part of a band of the adjoint, and of zeros after them."""
        words = self.rows * self.row_words
        return math.ceil(words / TILE) * TILE if self.tiles else words


@dataclass(frozen=True)
class Taps:
    """Where taps find packed data: a row class for each remainder of the stride, in it a variant for each column."""

    spec: Convolution
    blocking: Blocking

    @property
    def classes(self) -> list[int]:
        """The remainders that rows of the kernel have."""
        (step, _), (reach, _) = self.spec.strides, self.spec.dilation
        return sorted({row * reach % step for row in range(self.spec.kernel[0])})

    def down(self, row: int) -> int:
        """How many packed rows below the first a row of the kernel begins."""
        return row * self.spec.dilation[0] // self.spec.strides[0]

    def rows(self, remainder: int) -> int:
        """Packed rows of a class."""
        reach, step = self.spec.dilation[0], self.spec.strides[0]
        return self.blocking.rows + max(
            self.down(row) for row in range(self.spec.kernel[0]) if row * reach % step == remainder
        )

    def begin(self, remainder: int, column: int) -> int:
        """The word where the data of a class begin that a column of the kernel sees."""
        if self.blocking.tiles:
            return (self.classes.index(remainder) * self.spec.kernel[1] + column) * TILE * self.channel_pitch
        before = sum(self.rows(other) for other in self.classes if other < remainder) * self.spec.kernel[1]
        return (before + column * self.rows(remainder)) * self.pitch

    def offset(self, row: int, column: int) -> int:
        """The first word that a tap sees of an image."""
        remainder = row * self.spec.dilation[0] % self.spec.strides[0]
        down = self.blocking.row_words if self.blocking.tiles else self.pitch
        return self.begin(remainder, column) + self.down(row) * down

    @property
    def pitch(self) -> int:
        """Words from one packed row to the next."""
        return self.blocking.row_words * self.blocking.block

    @property
    def channel_pitch(self) -> int:
        """Words from one channel to the next for the matrix unit, which reads up to a tile more than there are."""
        most = max(map(self.rows, self.classes)) * self.blocking.row_words
        return (math.ceil(most / TILE) + 1) * TILE

    @property
    def image(self) -> int:
        """Words from one image to the next."""
        if self.blocking.tiles:
            return len(self.classes) * self.spec.kernel[1] * TILE * self.channel_pitch
        return sum(map(self.rows, self.classes)) * self.spec.kernel[1] * self.pitch


def choose_blocking(spec: Convolution, isa: InstructionSet, threads: int) -> Blocking:
    """The blocking with the fewest steps of the register tile, and the largest bands that stay in the cache."""
    height, width = output_size(spec)
    channels, features = spec.channels // spec.groups, spec.features // spec.groups
    pairs = spec.compute_dtype == "bfloat16" and isa.bf16_dot
    tiles = pairs and isa.tiles
    most_vectors = BLOCK if tiles else max(_TILES[isa.name])
    blocks = math.ceil(channels / _CHANNELS)
    channel_tasks = min(blocks, math.ceil(threads / spec.groups)) if blocks >= threads or spec.groups > 1 else 1
    wanted = math.ceil(threads / spec.groups / channel_tasks)

    def time(vectors: int) -> tuple[float, int]:
        panels = math.ceil(features / (vectors * isa.lanes))
        return math.ceil(panels / min(wanted, panels)) * vectors * _TILES[isa.name][vectors][1], vectors

    vectors = min((count for count in _TILES[isa.name] if count <= most_vectors), key=time)
    panel = vectors * isa.lanes
    panel_tasks = min(wanted, math.ceil(features / panel))
    blocking = Blocking(
        pairs=pairs,
        images=1,
        rows=height,
        row_words=math.ceil(width / (2 if pairs else 1)),
        block=TILE if tiles else min(channels, _CHANNELS),
        tile_rows=TILE * min(BLOCK, math.prod(spec.kernel)) if tiles else _TILES[isa.name][vectors][0],
        panel=panel,
        channel_tasks=channel_tasks,
        panel_tasks=panel_tasks,
        tiles=tiles,
    )
    adjoint_words = blocking.row_words * math.ceil(features / panel / panel_tasks) * panel

    def fits(candidate: Blocking) -> bool:
        adjoint = candidate.images * candidate.rows * adjoint_words
        return 4 * adjoint <= _ADJOINT_BYTES and 4 * candidate.images * Taps(spec, candidate).image <= _DATA_BYTES

    batch = spec.batch or 1
    wholes = [replace(blocking, images=count) for count in range(batch, 0, -1) if batch % count == 0]
    parts = [replace(blocking, rows=math.ceil(height / count)) for count in range(2, height + 1)]
    return next(filter(fits, [*wholes, *parts]), replace(blocking, rows=1))


def output_size(spec: Convolution) -> tuple[int, int]:
    """The output's height and width."""
    assert spec.height is not None and spec.width is not None
    return int(spec.output_extent(0, spec.height)), int(spec.output_extent(1, spec.width))
