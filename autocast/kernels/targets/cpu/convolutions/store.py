"""From sums in registers to the output: the epilogue of a tile of pixels, each stored at a place of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64
from autocast.kernels.targets.cpu.products.tile import Sums, Tile
from autocast.kernels.targets.cpu.vector.finish import Finish
from autocast.kernels.targets.cpu.vector.unit import VectorUnit


def store_tile(
    unit: VectorUnit,
    finish: Finish,
    tile: Tile | Sums,
    rows: int,
    place: Callable[[Extent], tirx.Expr],
    column: tirx.Expr,
    valid: tirx.Expr | None,
) -> None:
    """Emit code that applies the epilogue to a tile of `rows`, in registers or in memory, and stores it.

    Parameters
    ----------
    place
        Gives the place of a row's first feature in the output.
    column
        The tile's first feature.
    valid
        How many features from there on exist; None: as many as the tile has.
    """
    width = tile.width
    skips = range(0, width, unit.lanes)
    counts: list[Extent | None] = [None if valid is None else T.bind(valid - skip) for skip in skips]
    of_columns = [finish.of_columns(column + skip, count) for skip, count in zip(skips, counts, strict=True)]

    def store(row: Extent, values: Callable[[int], tirx.Expr]) -> None:
        start = T.bind(place(row) + column)
        for vector, (skip, count, known) in enumerate(zip(skips, counts, of_columns, strict=True)):
            finish.store(values(vector), start + skip, count, known)

    if isinstance(tile, Tile) and finish.from_registers:
        for row in range(rows):
            store(row, partial(_sums_of, tile, row))
        return
    if isinstance(tile, Sums):
        sums = tile
    else:  # functions that need many registers are applied to sums in memory, in a loop
        sums = Sums(unit.scratch(rows * width, "float32"), 0, width)
        tile.store(sums)
    with T.serial(0, i64(rows)) as row:
        store(row, lambda vector: T.bind(sums.buffer[unit.ramp(i64(sums.offset) + row * width + vector * unit.lanes)]))


def _sums_of(tile: Tile, row: int, vector: int) -> tirx.Expr:
    return tile[row, vector]


def where_whole(whole: bool | tirx.Expr, emit: Callable[[bool], None]) -> None:
    """Emit `emit(True)` where `whole` holds and `emit(False)` elsewhere; one of them if it is known which."""
    if isinstance(whole, bool):
        emit(whole)
        return
    with T.If(whole):
        with T.Then():
            emit(True)
        with T.Else():
            emit(False)
