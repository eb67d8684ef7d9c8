"""What a reduction kernel computes: a frozen description that equal reductions share."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from autocast.kernels.extents import i64
from autocast.kernels.specs.program import Dim, Program


@dataclass(frozen=True)
class Reduce:
    """What a kernel reduces.

    Attributes
    ----------
    program
        Computes the tensors that are reduced, as its outputs' steps; the outputs' shapes and dtypes are the results'.
    axes
        The dimensions of the program's space that are reduced.
    function
        One of `rows.reductions.SIMPLE`.
    mean
        Whether results are divided by the number of elements that make them up.
    moments
        Whether the results are mean and variance of the program's first argument x, and the tensors that are reduced
        x - s and (x - s)², where s, read as x's first line, is the mean of some. Only leading dimensions are reduced.
    """

    program: Program
    axes: tuple[int, ...]
    function: str
    mean: bool = False
    moments: bool = False

    @property
    def reduces_last(self) -> bool:
        """Whether the last dimension is reduced."""
        return len(self.program.space) - 1 in self.axes

    @property
    def tail(self) -> int:
        """How many of the last dimensions are all reduced, or all kept."""
        alike = [(axis in self.axes) == self.reduces_last for axis in reversed(range(len(self.program.space)))]
        return alike.index(False) if False in alike else len(alike)


@dataclass(frozen=True)
class Scatter:
    """`out[i, numbers[n], j] = base[i, numbers[n], j] + rows[i, n, j]`, summed over equal numbers in their order.

    i and j stand for the dimensions before and after `axis`. `rows` and `numbers` are (shape, dtype), `out` is the
    shape of the float32 result; without `based` the base is zero. Numbers that are out of range wrap around, or with
    `clips` become the nearest that is in range.
    """

    rows: tuple[tuple[Dim, ...], str]
    numbers: tuple[tuple[Dim, ...], str]
    out: tuple[Dim, ...]
    axis: int
    based: bool
    clips: bool = False

    def row(self, number: tirx.Expr, height: tirx.Expr) -> tirx.Expr:
        """The row that a number names, of `height`."""
        return tirx.max(i64(0), tirx.min(number, height - 1)) if self.clips else tirx.floormod(number, height)
