"""What a kernel moves: pieces of the result, each a nest of loops with a stride on either side."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autocast.kernels.specs.program import Dim
from autocast.kernels.specs.sizes import Size

#: Rows that are written after one another before the argument is read elsewhere: the first that divides them.
_RUNS = (16, 8, 4)


@dataclass(frozen=True)
class Axis:
    """A loop of `extent` steps: elements between steps in the argument (0: the same again) and in the result."""

    extent: Size
    read: Size
    write: Size


@dataclass(frozen=True)
class Piece:
    """A part of the result.

    Attributes
    ----------
    source
        The number of the argument that is read; None where the piece is filled with the elements of bit pattern `bits`.
    axes
        Loops, outermost first; no two steps write the same element.
    read, write
        The first element in the argument and in the result.
    """

    source: int | None
    axes: tuple[Axis, ...]
    read: Size = 0
    write: Size = 0
    bits: int = 0


@dataclass(frozen=True)
class Move:
    """What a kernel moves: (shape, dtype) of each argument and of the result, and the pieces that make up the result.

    Arguments have the result's dtype, or both dtypes are of `squares.FLOATS`.
    """

    arguments: tuple[tuple[tuple[Dim, ...], str], ...]
    pieces: tuple[Piece, ...]
    out: tuple[tuple[Dim, ...], str]


def merged(piece: Piece) -> Piece:
    """The same piece with as few loops as possible."""
    axes: list[Axis] = []
    for axis in piece.axes:
        if axis.extent == 1:
            continue
        if axes and axes[-1].write == axis.write * axis.extent and axes[-1].read == axis.read * axis.extent:
            axes[-1] = Axis(axes[-1].extent * axis.extent, axis.read, axis.write)
        else:
            axes.append(axis)
    return replace(piece, axes=tuple(axes))


def interleaved(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Loops over rows in an order that reads the argument in runs and still writes the result in runs.

    The last loop, which writes neighbours, takes a few steps, then come the loops with smaller strides in the argument,
    and then the other steps.
    """
    if not axes:
        return axes
    last = axes[-1]
    extent, stride = last.extent, last.read
    if not isinstance(extent, int) or not isinstance(stride, int):
        return axes
    nearer = [i for i, axis in enumerate(axes) if isinstance(axis.read, int) and 0 < axis.read < stride]
    step = next((step for step in _RUNS if extent % step == 0 and extent > step), None)
    if not nearer or step is None:
        return axes
    outer = Axis(extent // step, stride * step, last.write * step)
    return (*axes[: nearer[0]], outer, *axes[nearer[0] : -1], replace(last, extent=step))


#: What `relax.take` does with numbers that are out of range, as far as kernels do it.
MODES = ("fast", "clip", "wrap")


@dataclass(frozen=True)
class Lookup:
    """`out[i, n, j] = table[i, numbers[n], j]`, where i and j stand for the dimensions before and after `axis`.

    `table`, `numbers` and `out` are (shape, dtype); the dtypes of table and result are equal or both of
    `ir.FLOATS`. `mode` is one of `MODES`.
    """

    table: tuple[tuple[Dim, ...], str]
    numbers: tuple[tuple[Dim, ...], str]
    out: tuple[tuple[Dim, ...], str]
    axis: int
    mode: str


@dataclass(frozen=True)
class RowWrites:
    """`out[i, numbers[n], j] = rows[i, n, j]` and `out = x` elsewhere; i and j: the dimensions before and after `axis`.

    Negative numbers count from the end, beyond an end is the nearest, and of equal numbers the last counts. `x` is also
    the (shape, dtype) of the result; the dtypes of `rows` and `x` are equal or both of `ir.FLOATS`.
    """

    x: tuple[tuple[Dim, ...], str]
    numbers: tuple[tuple[Dim, ...], str]
    rows: tuple[tuple[Dim, ...], str]
    axis: int
