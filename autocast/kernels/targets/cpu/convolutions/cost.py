"""About how long a convolution takes if it is cut up in a way: a number, or TIR that computes it from sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import tirx

from autocast.kernels.extents import Extent, i64
from autocast.kernels.targets.cpu.convolutions.taps import Window

#: A tile and a task besides their steps, in cycles.
_TILE_CYCLES, _TASK_CYCLES = 60, 3000
#: Bytes of packed weights and of a band of data that stay in the level-2 cache beside each other.
WEIGHT_BYTES, _DATA_BYTES = 448 << 10, 400 << 10
#: The same of weights for the matrix unit: processors that have one have 2 MiB at that level.
TILES_WEIGHT_BYTES = 1 << 20
#: Bytes that a core gets from beyond its level-2 cache in a cycle.
_BYTES_A_CYCLE = 8


@dataclass(frozen=True)
class Cost:
    """What the time of a convolution depends on, besides its outputs and how these are divided among tasks.

    Attributes
    ----------
    row_window, column_window
        What outputs see along height and width.
    pixel_bytes
        Of one pixel of the data, as it is multiplied.
    tile_rows, tile_cycles, packing_cycles
        Pixels of a tile, and the cycles that its steps take, and that packing what its pixels see takes.
    panels, panel_bytes
        Panels of packed weights, and the bytes of one.
    panels_together
        Of these stay in the cache while all pixels of a band are multiplied with them.
    copies_bands
        Whether a band is copied, with zeros around it.
    result_bytes
        Of one pixel of the result, if these stay in the level-2 cache of the core that wrote them; else 0.
    cores
        That share the tasks.
    """

    row_window: Window
    column_window: Window
    pixel_bytes: int
    tile_rows: int
    tile_cycles: float
    packing_cycles: float
    panels: int
    panel_bytes: int
    panels_together: int
    copies_bands: bool
    result_bytes: int
    cores: int

    def cycles(
        self, batch: Extent, height: Extent, columns: Extent, images: int, rows: Extent, feature_tasks: int
    ) -> Extent:
        """Of (batch, height, columns) outputs in bands of `rows` of some images, for parts of the features.

        Its steps, and what comes from beyond the level-2 caches. Cores that share a band's features write parts of the
        same pixels, so that the kernel that reads them has to ask another core for some of each.
        """
        task_panels = math.ceil(self.panels / feature_tasks)
        tiles = _rounded_up(images * rows * columns, self.tile_rows)
        beyond = math.ceil(task_panels / self.panels_together)
        compute = tiles * task_panels * _whole(self.tile_cycles + _TILE_CYCLES, tiles)
        compute += tiles * beyond * _whole(self.packing_cycles, tiles)
        band_bytes = images * _seen(self.row_window, rows) * _seen(self.column_window, columns) * self.pixel_bytes
        fits = 1 + self.copies_bands
        times_read = _choose(band_bytes <= _DATA_BYTES, fits, beyond + 3 * self.copies_bands)
        weight_bytes = self.panel_bytes * task_panels
        per_core = _rounded_up(batch // images * _rounded_up(height, rows) * feature_tasks, self.cores)
        loaded = per_core * band_bytes * times_read
        loaded += weight_bytes * (per_core if weight_bytes > WEIGHT_BYTES else 1)
        loaded += per_core * images * rows * columns * (self.result_bytes * (feature_tasks - 1) // feature_tasks**2)
        waiting = loaded / _BYTES_A_CYCLE if isinstance(loaded, int) else tirx.truncdiv(loaded, i64(_BYTES_A_CYCLE))
        return per_core * (compute + _TASK_CYCLES) + waiting


def _seen(window: Window, outputs: Extent) -> Extent:
    return (outputs - 1) * min(window.step, window.span) + window.span


def _rounded_up(value: Extent, divisor: Extent) -> Extent:
    if isinstance(value, int) and isinstance(divisor, int):
        return math.ceil(value / divisor)
    return tirx.truncdiv(i64(value) + i64(divisor) - 1, tirx.max(i64(divisor), i64(1)))


def _choose(condition: bool | tirx.Expr, then: int, otherwise: int) -> Extent:
    if isinstance(condition, bool):
        return then if condition else otherwise
    return tirx.Select(condition, i64(then), i64(otherwise))


def _whole(cycles: float, beside: Extent) -> float:
    """The cycles: a whole number if they are multiplied with what only running tells."""
    return cycles if isinstance(beside, int) else round(cycles)
