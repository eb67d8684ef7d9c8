"""How a convolution is cut up: register tiles of pixels by features, bands of the data that fit the cache, tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autocast.kernels.convolutions.spec import Convolution
from autocast.kernels.convolutions.taps import Taps, Window, taps_of, window_of
from autocast.kernels.target import InstructionSet

#: The most rows of a register tile by instruction set and by vectors across, and the time of a step, relatively.
_TILES = {
    "avx512bf16": {4: (6, 1.0), 3: (8, 1.0), 2: (14, 1.0), 1: (24, 1.3)},
    "avx512": {4: (6, 1.0), 3: (8, 1.0), 2: (14, 1.0), 1: (24, 1.3)},
    "avx2": {2: (6, 1.0), 1: (12, 1.5)},
    "generic": {2: (4, 1.0), 1: (8, 1.5)},
}
#: What a tile costs besides its products, in rows: loads of weights, its beginning and its end.
_OVERHEAD_ROWS = 0.5
#: A band of padded data, and weights that are used with all of it, share the level-2 cache.
_DATA_BYTES = 320 << 10
_WEIGHT_BYTES = 448 << 10
#: Pixels of a band where the image's height is not known, and the width that is assumed where that is not.
_UNKNOWN_PIXELS, _UNKNOWN_WIDTH = 448, 64


@dataclass(frozen=True)
class Blocking:
    """The sizes of everything, known when code is generated.

    Attributes
    ----------
    row_kinds, column_kinds, row_window, column_window
        What outputs see along height and width.
    pairs
        Whether a word is a pair of bfloat16 channels, or a float32 number.
    run_taps
        Whether the channels of all taps of a kernel's row adjoin in the data, and so are summed in one run.
    tile_rows, panel
        The register tile: pixels by features.
    panels_together
        Panels of weights that stay in the cache while all pixels of a band are multiplied with them.
    images, rows
        A band: whole images, or rows (of outputs of one kind) of one image.
    feature_tasks
        Tasks that share a band, each with its panels.
    """

    row_kinds: tuple[Taps, ...]
    column_kinds: tuple[Taps, ...]
    row_window: Window
    column_window: Window
    pairs: bool
    run_taps: bool
    tile_rows: int
    panel: int
    panels_together: int
    images: int
    rows: int
    feature_tasks: int

    @property
    def per_word(self) -> int:
        """Elements in a word."""
        return 2 if self.pairs else 1

    def kinds(self) -> list[tuple[Taps, Taps]]:
        """All kinds of outputs, by row and column."""
        return [(row, column) for row in self.row_kinds for column in self.column_kinds]

    def loops(self, kind: tuple[Taps, Taps], channels: int) -> tuple[int, int, int]:
        """Of one kind of outputs: taps along height, taps along width, and elements of a run for each of them."""
        row, column = kind
        if row.count * column.count == 0:
            return 0, 0, 0
        return (row.count, 1, column.count * channels) if self.run_taps else (row.count, column.count, channels)

    def words(self, kind: tuple[Taps, Taps], channels: int) -> int:
        """Words along k of one kind of outputs; `channels` are those of a group."""
        high, wide, run = self.loops(kind, channels)
        return high * wide * math.ceil(run / self.per_word)


def as_rows(spec: Convolution) -> Convolution:
    """`spec` with each pixel a row of its own, if it mixes no pixels: one image of any batch, as high as may be."""
    if spec.kernel != (1, 1) or spec.strides != (1, 1) or any(spec.padding) or any(spec.output_padding):
        return spec
    extents = (spec.batch, spec.height, spec.width)
    pixels = None if None in extents else math.prod(extent for extent in extents if extent is not None)
    return replace(spec, batch=1, height=pixels, width=1)


def choose_blocking(spec: Convolution, isa: InstructionSet, cores: int) -> Blocking:
    """The blocking of `spec`: least padding of features and pixels, bands within the cache, equal tasks."""
    pairs = spec.compute_dtype == "bfloat16" and isa.bf16_dot
    kinds = taps_of(spec, 0), taps_of(spec, 1)
    windows = window_of(spec, 0, kinds[0]), window_of(spec, 1, kinds[1])
    run_taps = spec.groups == 1 and all(kind.reach == 1 or kind.count < 2 for kind in kinds[1])
    per_group = spec.features // spec.groups
    k_words = math.ceil(math.prod(spec.kernel) * spec.channels // spec.groups / (2 if pairs else 1))
    weight_bytes = 4 * k_words * spec.features
    images, rows, pixels, feature_tasks = _bands(spec, kinds, windows, cores, weight_bytes, 2 if pairs else 4)

    def time(tile: tuple[int, int]) -> float:
        vectors, height = tile
        width = vectors * isa.lanes
        steps = math.ceil(per_group / width) * math.ceil(pixels / height)
        return steps * vectors * _TILES[isa.name][vectors][1] * (height + _OVERHEAD_ROWS)

    highest = {vectors: most for vectors, (most, _) in _TILES[isa.name].items()}
    tiles = [(vectors, height) for vectors, most in highest.items() for height in range(most // 2, most + 1)]
    vectors, tile_rows = min(tiles, key=time)
    panel = vectors * isa.lanes
    panels = math.ceil(per_group / panel) * spec.groups
    feature_tasks = min(feature_tasks, panels)
    together = max(1, min(_WEIGHT_BYTES // (4 * k_words * panel), math.ceil(panels / feature_tasks)))
    return Blocking(
        *kinds, *windows, pairs, run_taps, min(tile_rows, pixels), panel, together, images, rows, feature_tasks
    )


def _bands(
    spec: Convolution,
    kinds: tuple[tuple[Taps, ...], tuple[Taps, ...]],
    windows: tuple[Window, Window],
    cores: int,
    weight_bytes: int,
    element_bytes: int,
) -> tuple[int, int, int, int]:
    """Images and rows of a band, the pixels in it (of one kind), and how many tasks share one."""
    if spec.height is None or spec.width is None:
        columns = kinds[1][0].outputs(spec.output_extent(1, spec.width or _UNKNOWN_WIDTH))
        rows = math.ceil(_UNKNOWN_PIXELS / columns)
        return 1, rows, rows * columns, 1
    rows = max(kind.outputs(spec.output_extent(0, spec.height)) for kind in kinds[0])
    columns = max(kind.outputs(spec.output_extent(1, spec.width)) for kind in kinds[1])
    padded_row = (spec.width - windows[1].first + windows[1].beyond) * spec.channels * element_bytes
    image_bytes = ((rows - 1) * windows[0].step + windows[0].span) * padded_row
    batch = spec.batch or 1
    # Few pixels meet many weights: let each core read its own part of the weights only.
    shared = cores if cores > 1 and weight_bytes > batch * image_bytes else 1
    at_once = [
        images
        for images in range(1, batch + 1)
        if batch % images == 0 and images * image_bytes <= _DATA_BYTES and batch // images * shared % cores == 0
    ]
    if at_once:
        return at_once[-1], rows, at_once[-1] * rows * columns, shared
    bands = math.ceil(image_bytes / _DATA_BYTES)
    while batch * bands * shared % cores and bands < rows:
        bands += 1
    band_rows = math.ceil(rows / bands)
    return 1, band_rows, band_rows * columns, shared
