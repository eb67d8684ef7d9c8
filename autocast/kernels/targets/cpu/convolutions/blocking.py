"""How a convolution is cut up: register tiles of pixels by features, bands of the data that fit the cache, tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import tvm

from autocast.kernels.specs.convolutions import Convolution
from autocast.kernels.targets.cpu.convolutions.cost import TILES_WEIGHT_BYTES, WEIGHT_BYTES, Cost
from autocast.kernels.targets.cpu.convolutions.taps import Taps, Window, taps_of, window_of
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet
from autocast.kernels.targets.cpu.vector.llvm_tiles import BLOCK, TILE

#: The most rows of a register tile by instruction set and by vectors across, and the time of a step, relatively.
_TILES = {
    "amx": {4: (6, 1.0), 3: (8, 1.0), 2: (14, 1.0), 1: (24, 1.3)},
    "avx512bf16": {4: (6, 1.0), 3: (8, 1.0), 2: (14, 1.0), 1: (24, 1.3)},
    "avx512": {4: (6, 1.0), 3: (8, 1.0), 2: (14, 1.0), 1: (24, 1.3)},
    "avx2": {2: (6, 1.0), 1: (12, 1.5)},
    "generic": {2: (4, 1.0), 1: (8, 1.5)},
}
#: What a step takes besides its products, in rows of a vector.
_STEP_ROWS = 0.5
#: The cycles that it takes to pack a word of each row for the matrix unit.
_PACKING_CYCLES = 5
#: Addresses that differ by a multiple of this compete for a few places of the level-1 cache, its ways.
_SET_BYTES, _WAYS = 4096, 8
#: What sizes are taken to be, to choose a blocking, where they are not known: of an image, and of rows of one pixel.
_UNKNOWN_SIZE, _UNKNOWN_PIXELS = 28, 512
#: The most different pieces of code for tiles at different places of an image's row, and the widest kernel for them.
_MOST_PLACES, _WIDEST_TRIMMED = 3, 5

#: For each place of a tile in a row of pixels: for each tap along the width, the tile's pixels that see data there.
Places = tuple[tuple[tuple[int, ...], ...], ...]


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
    images, rows
        A band: whole images, or rows (of outputs of one kind) of one image.
    feature_tasks
        Tasks that share a band, each with its panels.
    tile_rows, panel
        The register tile: pixels by features.
    trims_rows
        Whether each tile lies in one row of pixels, so that rows of the kernel that meet no data are left out for it.
    places
        If taps along the width that meet no data are left out too, which these are.
    panels_together
        Panels of weights that stay in the cache while all pixels of a band are multiplied with them.
    tiles
        Whether the matrix unit multiplies: see `matrix`.
    in_rows
        Whether each pixel sees itself alone, and is a row of its own: see `as_rows`.
    """

    row_kinds: tuple[Taps, ...]
    column_kinds: tuple[Taps, ...]
    row_window: Window
    column_window: Window
    pairs: bool
    run_taps: bool
    images: int = 1
    rows: int = 1
    feature_tasks: int = 1
    tile_rows: int = 1
    panel: int = 1
    trims_rows: bool = False
    places: Places | None = None
    panels_together: int = 1
    tiles: bool = False
    in_rows: bool = False

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
        """Words along k of one kind of outputs, whole tiles of them if it has such; `channels` are those of a group."""
        high, wide, run = self.loops(kind, channels)
        words = high * wide * math.ceil(run / self.per_word)
        return math.ceil(words / TILE) * TILE if self.tiles else words


def as_rows(spec: Convolution) -> Convolution:
    """`spec` with each pixel a row of its own, if it mixes no pixels: one image of any batch, as high as may be."""
    if not _mixes_no_pixels(spec):
        return spec
    extents = (spec.batch, spec.height, spec.width)
    pixels = None if None in extents else math.prod(extent for extent in extents if extent is not None)
    return replace(spec, batch=1, height=pixels, width=1)


def _mixes_no_pixels(spec: Convolution) -> bool:
    apart = any(spec.padding) or any(spec.output_padding)
    return spec.kernel == (1, 1) and spec.strides == (1, 1) and not apart


#: How many bands, and how many heights of tiles, are measured.
_WAYS_MEASURED = 4


@cache
def choose_blocking(spec: Convolution, isa: InstructionSet, cores: int) -> Blocking:
    """The blocking of `spec` (of `as_rows`) that a model of the machine takes to be the fastest."""
    candidates = _candidates(spec, isa, cores)
    return min(candidates.all(), key=candidates.cycles)


def cost_of(spec: Convolution, isa: InstructionSet, cores: int, blocking: Blocking) -> Cost:
    """What the time of a blocking of `spec` (of `as_rows`) depends on, besides the size of images."""
    return _candidates(spec, isa, cores).cost(blocking)


def ways_of(spec: Convolution, isa: InstructionSet, cores: int) -> dict[str, Blocking]:
    """The blockings that a model of the machine takes to be nearly as fast, by names: weights are packed for one panel.

    None where sizes are not known.
    """
    if None in (spec.batch, spec.height, spec.width):
        return {}
    spec = as_rows(spec)
    chosen, candidates = choose_blocking(spec, isa, cores), _candidates(spec, isa, cores)
    ordered = sorted((one for one in candidates.all() if one.panel == chosen.panel), key=candidates.cycles)
    near: dict[tuple[int, ...], Blocking] = {}
    for one in ordered:  # tiles of several heights differ less than bands and tasks do
        near.setdefault((one.images, one.rows, one.feature_tasks), one)
    tiles = [one for one in ordered if (one.images, one.rows) == (chosen.images, chosen.rows)][:_WAYS_MEASURED]
    return {
        f"{one.images} images, {one.rows} rows, {one.feature_tasks} tasks, tiles of {one.tile_rows}": one
        for one in (*list(near.values())[:_WAYS_MEASURED], *tiles)
        if one != chosen
    }


def _candidates(spec: Convolution, isa: InstructionSet, cores: int) -> _Candidates:
    kinds = taps_of(spec, 0), taps_of(spec, 1)
    pairs = spec.compute_dtype == "bfloat16" and isa.bf16_dot
    blocking = Blocking(
        *kinds,
        window_of(spec, 0, kinds[0]),
        window_of(spec, 1, kinds[1]),
        pairs=pairs,
        run_taps=spec.groups == 1 and all(kind.reach == 1 or kind.count < 2 for kind in kinds[1]),
        tiles=pairs and isa.tiles,
        in_rows=_mixes_no_pixels(spec) and (spec.batch, spec.width) == (1, 1),
    )
    return _Candidates(spec, isa, cores, blocking)


class _Candidates:
    """All blockings of a convolution that come into question, and how long they take."""

    def __init__(self, spec: Convolution, isa: InstructionSet, cores: int, blocking: Blocking) -> None:
        self.spec, self.isa, self.cores, self.blocking = spec, isa, cores, blocking
        self.known = None not in (spec.height, spec.width)
        self.batch = spec.batch or 1
        self.height = spec.height or (_UNKNOWN_PIXELS if spec.width == 1 else _UNKNOWN_SIZE)
        self.width = spec.width or _UNKNOWN_SIZE
        out_height, out_width = spec.output_extent(0, self.height), spec.output_extent(1, self.width)
        self.rows = max(1, *(kind.outputs(out_height) for kind in blocking.row_kinds))
        self.columns = max(1, *(kind.outputs(out_width) for kind in blocking.column_kinds))
        self.k_words = max(1, sum(blocking.words(kind, spec.channels // spec.groups) for kind in blocking.kinds()))
        self.trimmable = self.known and len(blocking.kinds()) == 1
        self.padded = blocking.row_window.first < 0 or blocking.row_window.beyond > 0
        self.padded_columns = blocking.column_window.first < 0 or blocking.column_window.beyond > 0
        self.places_of = cache(self._places)
        self.part_of_taps = self._part_of_taps(0), self._part_of_taps(1)

    def all(self) -> Iterator[Blocking]:
        """Every blocking that comes into question."""
        for images, rows in self._bands():
            for feature_tasks in sorted({1, self.cores}):
                if self.blocking.tiles:
                    for vectors in range(1, BLOCK + 1):
                        yield self._blocking(images, rows, feature_tasks, BLOCK * TILE, vectors * self.isa.lanes)
                    continue
                for vectors, (most, _) in _TILES[self.isa.name].items():
                    most = min(most, self._most_rows())
                    for tile_rows in range(min(most // 2, images * rows * self.columns), most + 1):
                        yield self._blocking(images, rows, feature_tasks, max(1, tile_rows), vectors * self.isa.lanes)

    def _most_rows(self) -> int:
        """The most rows of a tile whose data stay in the level-1 cache from one step to the next."""
        apart = self.blocking.row_window if self.width == 1 else self.blocking.column_window
        distance = apart.step * self.spec.channels * (2 if self.blocking.pairs else 4)
        return _WAYS * (_SET_BYTES // math.gcd(distance, _SET_BYTES))

    def _bands(self) -> list[tuple[int, int]]:
        """Images and rows of a band: whole images, or about 20 ways to cut one."""
        # Bands of images of unknown size are cut when they come.
        together = range(1, self.batch + 1 if self.known else 2)
        whole = [(images, self.rows) for images in together if self.batch % images == 0]
        parts = {math.ceil(self.rows / round(1.35**i)) for i in range(22)}
        return whole + [(1, rows) for rows in sorted(parts) if rows < self.rows]

    def _blocking(self, images: int, rows: int, feature_tasks: int, tile_rows: int, panel: int) -> Blocking:
        panels = math.ceil(self.spec.features // self.spec.groups / panel) * self.spec.groups
        feature_tasks = min(feature_tasks, panels)
        weight_bytes = TILES_WEIGHT_BYTES if self.blocking.tiles else WEIGHT_BYTES
        together = max(1, min(weight_bytes // (4 * self.k_words * panel), math.ceil(panels / feature_tasks)))
        aligned = self.trimmable and not self.blocking.tiles and images * self.columns % tile_rows == 0
        return replace(
            self.blocking,
            images=images,
            rows=rows,
            feature_tasks=feature_tasks,
            tile_rows=tile_rows,
            panel=panel,
            trims_rows=aligned and self.padded,
            places=self.places_of(images, tile_rows) if aligned and self.padded_columns else None,
            panels_together=together,
        )

    def _places(self, images: int, tile_rows: int) -> Places | None:
        taps, spec, blocking = self.blocking.column_kinds[0], self.spec, self.blocking
        if not blocking.run_taps or spec.channels % blocking.per_word or taps.count > _WIDEST_TRIMMED:
            return None

        def sees_data(pixel: int, tap: int) -> bool:
            return 0 <= taps.first + pixel % self.columns * taps.step + tap * taps.reach < self.width

        places = tuple(
            tuple(tuple(row for row in range(tile_rows) if sees_data(begin + row, tap)) for tap in range(taps.count))
            for begin in range(0, images * self.columns, tile_rows)
        )
        return places if len(set(places)) <= _MOST_PLACES else None

    def _part_of_taps(self, axis: int) -> float:
        """The part of the taps along an axis that meet data."""
        taps = (self.blocking.row_kinds, self.blocking.column_kinds)[axis][0]
        outputs, extent = ((self.rows, self.height), (self.columns, self.width))[axis]
        starts = (taps.first + index * taps.step for index in range(outputs))
        seen = sum(0 <= start + tap * taps.reach < extent for start in starts for tap in range(taps.count))
        return seen / (outputs * max(1, taps.count))

    def cost(self, blocking: Blocking) -> Cost:
        """What the time of a blocking depends on, besides its bands and tasks."""
        spec, vectors = self.spec, blocking.panel // self.isa.lanes
        if blocking.tiles:  # a tile along k is multiplied in as many cycles as it has rows
            step: float = vectors * BLOCK
        else:
            step = vectors * _TILES[self.isa.name][vectors][1] * (blocking.tile_rows + _STEP_ROWS)
            step *= self.part_of_taps[0] if blocking.trims_rows else 1.0
            step *= self.part_of_taps[1] if blocking.places is not None else 1.0
        packed = blocking.tiles and not blocking.in_rows
        return Cost(
            blocking.row_window,
            blocking.column_window,
            pixel_bytes=spec.channels * (2 if blocking.pairs else 4),
            tile_rows=blocking.tile_rows,
            tile_cycles=self.k_words * step,
            packing_cycles=self.k_words * (_PACKING_CYCLES if packed else 0),
            panels=math.ceil(spec.features // spec.groups / blocking.panel) * spec.groups,
            panel_bytes=4 * self.k_words * blocking.panel,
            panels_together=blocking.panels_together,
            copies_bands=(self.padded or self.padded_columns) and blocking.places is None,
            result_bytes=spec.features * tvm.DataType(spec.out_dtype).itemsize if blocking.tiles else 0,
            cores=self.cores,
        )

    def cycles(self, blocking: Blocking) -> float:
        """About how long the convolution takes."""
        shape = self.batch, self.rows, self.columns
        cycles = self.cost(blocking).cycles(*shape, blocking.images, blocking.rows, blocking.feature_tasks)
        assert isinstance(cycles, int | float)
        return cycles
