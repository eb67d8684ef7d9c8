"""Kernels that reduce over axes that are not the last ones, and over all of them."""

from __future__ import annotations

from functools import partial

from benchmarks.harness import run
from benchmarks.kernels.layout import Operation, cases_of, ours, theirs
from benchmarks.sides import Call


def summed(shape: tuple[int, ...], axes: tuple[int, ...], quick: bool = False) -> Operation:
    """A sum over axes."""
    return Operation(shape, lambda x: x.sum(axes), lambda op, x: op.sum(x, list(axes)), quick)


OPERATIONS = {
    "columns of 1024 x 3072": summed((1024, 3072), (0,), True),
    "columns of 3072 x 1024": summed((3072, 1024), (0,), True),
    "columns of 30522 x 768": summed((30522, 768), (0,)),
    "columns of 1024 x 30522": summed((1024, 30522), (0,), True),
    "all of 2048 x 2048": summed((2048, 2048), (0, 1), True),
    "all of 8192 x 4096": summed((8192, 4096), (0, 1)),
    "8 x 128 x 768 over 0 and 1": summed((8, 128, 768), (0, 1)),
    "64 x 128 x 256 over 1": summed((64, 128, 256), (1,)),
    "4 x 64 x 56 x 56 over 0, 2 and 3": summed((4, 64, 56, 56), (0, 2, 3)),
    "4 x 56 x 56 x 64 over 0, 1 and 2": summed((4, 56, 56, 64), (0, 1, 2)),
    "variance of columns of 1024 x 3072": Operation(
        (1024, 3072), lambda x: x.var(0, correction=0), lambda op, x: op.variance(x, [0])
    ),
    "largest of columns of 1024 x 3072": Operation(
        (1024, 3072), lambda x: x.amax(0), lambda op, x: op.max(x, [0]), True
    ),
}


def our_reduction(name: str, dtype: str) -> Call:
    """Our call of a reduction."""
    return ours(OPERATIONS, name, dtype)


def their_reduction(name: str, dtype: str, *, compiled: bool) -> Call:
    """torch's call of it."""
    return theirs(OPERATIONS, name, dtype, compiled=compiled)


if __name__ == "__main__":
    run("reductions", __doc__, partial(cases_of, (our_reduction, their_reduction), OPERATIONS))
