"""Extents and indices in TIR: numbers where they are known, expressions where only running tells."""

from __future__ import annotations

from typing import TypeAlias

from tvm import tirx

Extent: TypeAlias = int | tirx.Expr


def i64(value: Extent) -> tirx.Expr:
    """`value` as an int64 expression: indices are 64 bits wide, so buffers may exceed 2^31 elements."""
    return tirx.const(value, "int64") if isinstance(value, int) else value.astype("int64")


def i32(value: Extent) -> tirx.Expr:
    """`value` as an int32 expression, for counts within a vector; counts past 2^30 saturate."""
    return tirx.const(value, "int32") if isinstance(value, int) else tirx.min(value, i64(1 << 30)).astype("int32")


def ceil_div(value: Extent, divisor: int) -> Extent:
    """`value / divisor` rounded up."""
    return (value + (divisor - 1)) // divisor


def quotient(index: Extent, extent: Extent) -> Extent:
    """`index // extent` of what is not negative.

    TVM does not know the sign of an extent that is known at run time: it would round down by a choice between two
    cases, which multiply where quotients are divided again, until compiling one kernel takes minutes.
    """
    return index // extent if isinstance(extent, int) else tirx.truncdiv(i64(index), _divisor(extent))


def remainder(index: Extent, extent: Extent) -> Extent:
    """`index % extent` of what is not negative, as `quotient` divides."""
    return index % extent if isinstance(extent, int) else tirx.truncmod(i64(index), _divisor(extent))


def _divisor(extent: tirx.Expr) -> tirx.Expr:
    """An extent to divide by: TVM's analysis has to see that it is not 0."""
    return tirx.max(i64(extent), i64(1))


def minimum(a: Extent, b: Extent) -> Extent:
    """The smaller of two extents, known now if both are."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else tirx.min(i64(a), i64(b))
