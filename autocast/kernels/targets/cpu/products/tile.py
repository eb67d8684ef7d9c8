"""The innermost work of a matrix product: a tile of sums in registers, and what sums undergo before they are stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64
from autocast.kernels.targets.cpu.vector.finish import Finish
from autocast.kernels.targets.cpu.vector.unit import VectorUnit

#: Words whose products are summed in registers alone, and those of a block where there are more.
MOST_WORDS, BLOCK_WORDS = 1536, 1024

#: Tiles of so many vectors keep the vector unit busy: lower ones take as long.
_BUSY_VECTORS = 12

#: Gives the word of A at (row of a tile, word along k).
AWord = Callable[[int, tirx.Expr], tirx.Expr | None]


def heights_down_from(rows: int, vectors: int) -> list[int]:
    """Heights of tiles of `vectors` across that end any number of rows with little waste: `rows`, its half, ..."""
    heights = [rows]
    while heights[-1] * vectors > _BUSY_VECTORS:
        heights.append((heights[-1] + 1) // 2)
    return heights


@dataclass(frozen=True)
class Sums:
    """Float32 sums in memory: row r, column c of a tile at `offset + r * width + c` of `buffer`."""

    buffer: tirx.Buffer
    offset: Extent
    width: int


class Tile:
    """A tile of `rows` x `width` float32 sums that the generated code keeps in registers."""

    def __init__(self, unit: VectorUnit, rows: int, width: int) -> None:
        self.unit, self.rows, self.width = unit, rows, width
        self.vectors = width // unit.lanes
        # A buffer for each row: TVM puts no larger ones on the stack, and LLVM makes registers only of what is there.
        self.registers = [T.alloc_buffer((width,), "float32") for _ in range(rows)]

    def __getitem__(self, place: tuple[int, int]) -> tirx.Expr:
        """The sums at (row, vector)."""
        row, vector = place
        return self.registers[row][self._at(vector)]

    def __setitem__(self, place: tuple[int, int], value: tirx.Expr) -> None:
        row, vector = place
        T.buffer_store(self.registers[row], value, [self._at(vector)])

    def _at(self, vector: int) -> tirx.Expr:
        return T.ramp(vector * self.unit.lanes, 1, self.unit.lanes)

    def _places(self) -> list[tuple[int, int]]:
        return [(row, vector) for row in range(self.rows) for vector in range(self.vectors)]

    def _in_memory(self, sums: Sums, row: int, vector: int) -> tirx.Expr:
        return self.unit.ramp(i64(sums.offset) + row * self.width + vector * self.unit.lanes)

    def clear(self) -> None:
        """Emit code that sets all sums to zero."""
        for row, vector in self._places():
            self[row, vector] = self.unit.splat(0.0)

    def add(self, sums: Sums) -> None:
        """Emit code that adds sums in memory: those of other blocks, so that errors grow with the size of a block."""
        for row, vector in self._places():
            self[row, vector] = self[row, vector] + sums.buffer[self._in_memory(sums, row, vector)]

    def store(self, sums: Sums) -> None:
        """Emit code that puts the sums into memory."""
        for row, vector in self._places():
            T.buffer_store(sums.buffer, self[row, vector], [self._in_memory(sums, row, vector)])
        self.unit.fence(sums.buffer)

    def multiply(
        self,
        a_word: AWord,
        b_buffer: tirx.Buffer,
        b_offset: Extent,
        k_words: Extent,
        between: Callable[[tirx.Expr], None] | None = None,
    ) -> None:
        """Emit code that adds the products of `k_words` words of A and of a packed panel of B.

        Parameters
        ----------
        a_word
            Gives the word of A at (row of the tile, word along k); None for rows that have no part in these products.
        b_buffer, b_offset
            A packed panel of B: word (k, column) at `b_offset + k * width + column`.
        between
            Emits what else is done for each word along k.
        """
        with T.serial(0, i64(k_words)) as k:
            if between is not None:
                between(k)
            self.step(lambda row: a_word(row, k), b_buffer, i64(b_offset) + k * self.width)

    def step(self, a_word: Callable[[int], tirx.Expr | None], b_buffer: tirx.Buffer, b_offset: Extent) -> None:
        """Emit code that adds the products of one word of each row of A and a row of words of B, at `b_offset`."""
        unit = self.unit
        add = unit.dot_pairs if str(b_buffer.dtype) == "int32" else unit.multiply_add
        b = [T.bind(b_buffer[unit.ramp(i64(b_offset) + vector * unit.lanes)]) for vector in range(self.vectors)]
        for row in range(self.rows):
            word = a_word(row)
            if word is None:
                continue
            a = T.bind(T.broadcast(word, unit.lanes))
            for vector in range(self.vectors):
                self[row, vector] = add(a, b[vector], self[row, vector])


class BlockedSums:
    """The sums of a tile over `words` words: where these are many, of blocks, whose size then decides on the error."""

    def __init__(self, tile: Tile, words: int) -> None:
        self.tile, self.sums = tile, None
        tile.clear()
        if words > MOST_WORDS:
            self.sums = Sums(tile.unit.scratch(tile.rows * tile.width, "float32"), 0, tile.width)
            tile.store(self.sums)

    def end_block(self) -> None:
        """Emit code that ends a block."""
        if self.sums is not None:
            self.tile.add(self.sums)
            self.tile.store(self.sums)
            self.tile.clear()

    def end_run(self, index: tirx.Expr, words: int) -> None:
        """Emit code that ends a block after the `index`-th run of `words` words, if enough of them make one."""
        if self.sums is not None:
            with T.If((index + 1) % max(1, BLOCK_WORDS // words) == 0), T.Then():
                self.end_block()

    def finish(self) -> None:
        """Emit code that leaves the sums of all blocks in the tile."""
        if self.sums is not None:
            self.tile.add(self.sums)


def multiply_tile(
    unit: VectorUnit,
    *,
    rows: int,
    a_word: AWord,
    b_buffer: tirx.Buffer,
    b_offset: Extent,
    k_words: Extent,
    sums: Sums,
    accumulate: bool,
) -> None:
    """Emit code that sums `rows` x `sums.width` products over `k_words` words, in registers, and stores the sums.

    `accumulate` says whether `sums` hold the sums of earlier words, or nothing yet; see `Tile.multiply` for the others.
    """
    tile = Tile(unit, rows, sums.width)
    unit.fence(sums.buffer)
    tile.clear()
    tile.multiply(a_word, b_buffer, b_offset, k_words)
    if accumulate:
        tile.add(sums)
    tile.store(sums)


@dataclass(frozen=True)
class Output:
    """Where sums go: one matrix of the output.

    Attributes
    ----------
    base, columns
        Where the matrix begins in the output, and the length of its rows.
    """

    finish: Finish
    base: tirx.Expr
    columns: Extent


def finish_tile(unit: VectorUnit, output: Output, tile: Tile, starts: list[tirx.Expr], column: Extent) -> None:
    """Emit code that applies the epilogue to a whole tile in registers, and stores it.

    Parameters
    ----------
    starts
        For each row, the place in the output of its first element.
    column
        The tile's first column.
    """
    skips = [vector * unit.lanes for vector in range(tile.vectors)]
    of_columns = [output.finish.of_columns(i64(column) + skip, None) for skip in skips]
    for row, start in enumerate(starts):
        for vector, (skip, known) in enumerate(zip(skips, of_columns, strict=True)):
            output.finish.store(tile[row, vector], start + skip, None, known)


def finish_rows(unit: VectorUnit, output: Output, sums: Sums, rows: Extent, row: Extent, column: Extent) -> None:
    """Emit code that applies the epilogue to `rows` rows of sums in memory and stores them at (row, column)."""

    def finish(partial: bool) -> None:
        with T.serial(0, i64(rows)) as r:
            start = T.bind(output.base + (i64(row) + r) * output.columns + i64(column))
            for vector in range(sums.width // unit.lanes):
                skip = vector * unit.lanes
                count = T.bind(i64(output.columns) - i64(column) - skip) if partial else None
                value = T.bind(sums.buffer[unit.ramp(i64(sums.offset) + r * sums.width + skip)])
                known = output.finish.of_columns(i64(column) + skip, count)
                output.finish.store(value, start + skip, count, known)

    if isinstance(output.columns, int) and output.columns % sums.width == 0:
        finish(partial=False)
        return
    with T.If(i64(column) + sums.width <= i64(output.columns)):
        with T.Then():
            finish(partial=False)
        with T.Else():
            finish(partial=True)
