"""The innermost work of a matrix product: a tile of sums in registers, and what sums undergo before they are stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.products.spec import Epilogue
from autocast.kernels.vector import vector_math
from autocast.kernels.vector.unit import Extent, VectorUnit, i64


@dataclass(frozen=True)
class Sums:
    """Float32 sums in memory: row r, column c of a tile at `offset + r * width + c` of `buffer`."""

    buffer: tirx.Buffer
    offset: Extent
    width: int


def multiply_tile(
    unit: VectorUnit,
    *,
    rows: int,
    a_word: Callable[[int, tirx.Expr], tirx.Expr],
    b_buffer: tirx.Buffer,
    b_offset: Extent,
    k_words: Extent,
    sums: Sums,
    accumulate: bool,
) -> None:
    """Emit code that sums `rows` x `sums.width` products over `k_words` words, in registers, and stores the sums.

    Parameters
    ----------
    a_word
        Gives the word of A at (row of the tile, word along k).
    b_buffer, b_offset
        A packed panel of B: word (k, column) at `b_offset + k * width + column`.
    accumulate
        Whether `sums` hold the sums of earlier words, or nothing yet.
    """
    lanes, width = unit.lanes, sums.width
    vectors = width // lanes
    # A buffer for each row: TVM puts no larger ones on the stack, and LLVM makes registers only of what is there.
    accumulators = [T.alloc_buffer((width,), "float32") for _ in range(rows)]

    def at(vector: int) -> tirx.Expr:
        return T.ramp(vector * lanes, 1, lanes)

    unit.fence(sums.buffer)
    for row in range(rows):
        for vector in range(vectors):
            start = unit.ramp(i64(sums.offset) + row * width + vector * lanes)
            T.buffer_store(accumulators[row], sums.buffer[start] if accumulate else unit.splat(0.0), [at(vector)])
    step = unit.dot_pairs if str(b_buffer.dtype) == "int32" else unit.multiply_add
    with T.serial(0, i64(k_words)) as k:
        b = [T.bind(b_buffer[unit.ramp(i64(b_offset) + k * width + v * lanes)]) for v in range(vectors)]
        for row in range(rows):
            a = T.bind(T.broadcast(a_word(row, k), lanes))
            for vector in range(vectors):
                total = step(a, b[vector], accumulators[row][at(vector)])
                T.buffer_store(accumulators[row], total, [at(vector)])
    for row in range(rows):
        for vector in range(vectors):
            start = unit.ramp(i64(sums.offset) + row * width + vector * lanes)
            T.buffer_store(sums.buffer, accumulators[row][at(vector)], [start])
    unit.fence(sums.buffer)


@dataclass(frozen=True)
class Output:
    """Where sums go: one matrix of the output, and what its epilogue reads.

    Attributes
    ----------
    view, base, columns
        The output's memory (flat), where the matrix begins in it, and the length of its rows.
    bias, residual
        Flat views of the epilogue's operands; the residual is laid out as the output.
    """

    view: tirx.Buffer
    base: tirx.Expr
    columns: Extent
    epilogue: Epilogue
    bias: tirx.Buffer | None
    residual: tirx.Buffer | None


def finish_rows(unit: VectorUnit, output: Output, sums: Sums, rows: Extent, row: Extent, column: Extent) -> None:
    """Emit code that applies the epilogue to `rows` rows of sums and stores them at (row, column) of the output."""

    def finish(partial: bool) -> None:
        with T.serial(0, i64(rows)) as r:
            start = T.bind(output.base + (i64(row) + r) * output.columns + i64(column))
            for vector in range(sums.width // unit.lanes):
                skip = vector * unit.lanes
                count = T.bind(i64(output.columns) - i64(column) - skip) if partial else None
                value = T.bind(sums.buffer[unit.ramp(i64(sums.offset) + r * sums.width + skip)])
                value = T.bind(_apply(unit, output, value, i64(column) + skip, start + skip, count))
                unit.store(output.view, start + skip, value, count)

    if isinstance(output.columns, int) and output.columns % sums.width == 0:
        finish(partial=False)
        return
    with T.If(i64(column) + sums.width <= i64(output.columns)):
        with T.Then():
            finish(partial=False)
        with T.Else():
            finish(partial=True)


def _apply(
    unit: VectorUnit,
    output: Output,
    value: tirx.Expr,
    column: tirx.Expr,
    at: tirx.Expr,
    count: tirx.Expr | None,
) -> tirx.Expr:
    """The epilogue of one vector of sums whose first element is in `column`, and `at` its place in the output."""
    epilogue = output.epilogue
    if epilogue.scale is not None:
        value = value * unit.splat(epilogue.scale)
    if output.bias is not None:
        value = value + unit.load(output.bias, column, count)
    steps = ["activation", "residual"]
    for step in reversed(steps) if epilogue.residual_first else steps:
        if step == "residual" and output.residual is not None:
            value = value + unit.load(output.residual, at, count)
        if step == "activation" and epilogue.activation is not None:
            value = vector_math.call(epilogue.activation, value)
    return value
