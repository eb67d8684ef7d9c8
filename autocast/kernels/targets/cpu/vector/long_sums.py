"""Sums of very many numbers: blocks are summed in float32 alone, and added up with what rounding loses of them.

The error of a plain sum grows with the number of its terms. Here it grows with the size of a block, which is the
caller's choice; adding a block takes six more additions (Knuth's two-sum).
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.targets.cpu.vector.unit import VectorUnit


def add_block(unit: VectorUnit, total: tirx.Buffer, lost: tirx.Buffer, at: tirx.Expr, value: tirx.Expr) -> None:
    """Emit that the vector `value`, a block's sums, is added to a total, and what rounding loses by that to `lost`."""
    value, before = T.bind(unit.once(value)), T.bind(unit.once(total[at]))
    # Not in TIR, whose simplifier takes float32 numbers for real ones, which lose nothing.
    off = tirx.call_pure_extern(unit.dtype, "autocast_rounded_off", before, value)
    T.buffer_store(lost, lost[at] + off, [at])
    T.buffer_store(total, before + value, [at])


def corrected(unit: VectorUnit, total: tirx.Expr, lost: tirx.Expr) -> tirx.Expr:
    """A vector of totals with what rounding lost; that is not a number where a total is infinite."""
    total, lost = T.bind(total), T.bind(lost)
    return tirx.Select(tirx.abs(lost) < unit.splat(float("inf")), total + lost, total)
