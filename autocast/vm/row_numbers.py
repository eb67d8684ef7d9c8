"""Which inputs of a function number rows of its tables: see `Signature.check_rows`."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from autocast import ir
from autocast.model.value import IMPORTED_FROM
from autocast.runtime.signature import Rows
from autocast.vm.dimensions import Dimensions

#: Operators whose result holds the numbers of their first operand: all of them, and no others.
_REARRANGES = tuple(
    f"relax.{name}"
    for name in ("astype", "broadcast_to", "expand_dims", "flatten", "permute_dims", "reshape", "squeeze")
)


def rows_of(main: relax.Function, count: int, dimensions: Dimensions) -> tuple[tuple[int, Rows], ...]:
    """The positions of those of the first `count` parameters that number rows, each with the rows.

    `take` answers as it pleases where a number has no row, unless its mode says what it answers. In what comes from
    torch "wrap" says no more than that the last row is the one before the first, too: torch refuses what is beyond.
    Numbers that are chosen or computed from inputs are left alone, and so is what is looked up within a branch.
    """
    wraps = (main.attrs or {}).get(IMPORTED_FROM) == "torch"
    bound = {b.var: b.value for block in main.body.blocks for b in block.bindings}
    #: The input that a variable holds the numbers of, and whether those below 0 were counted from the end.
    held: dict[relax.Var, tuple[int, bool]] = {}
    for at, var in enumerate(main.params[:count]):
        if "int" in str(ir.dtype_of(var)):
            held[var] = at, False
    found = []
    for var, value in bound.items():
        source = _source(value, bound, held)
        if source is not None:
            held[var] = source
        mode = str(value.attrs.mode) if ir.is_op(value, "relax.take") else ""
        if mode not in ("fast", "wrap") or value.args[1] not in held or (mode == "wrap" and not wraps):
            continue
        at, from_end = held[value.args[1]]
        shape, axis = ir.shape_of(value.args[0]), value.attrs.axis
        rows = None if shape is None or (axis is None and len(shape) != 1) else dimensions.size(shape[int(axis or 0)])
        if rows is not None:
            found.append((at, Rows(rows, _name(value.args[0], bound), from_end or mode == "wrap")))
    return tuple(found)


def _source(value: Any, bound: dict[relax.Var, Any], held: dict[relax.Var, tuple[int, bool]]) -> Any:
    """What `value` holds the numbers of, as `held` has it; None where it holds others."""
    if isinstance(value, relax.Var):
        return held.get(value)
    if ir.is_op(value, *_REARRANGES):
        return held.get(value.args[0]) if "int" in str(ir.dtype_of(value)) else None
    if ir.is_op(value, "relax.where") and value.args[2] in held:  # x below 0 plus the number of rows, else x
        below, counted = (bound.get(part) for part in value.args[:2])
        numbers = value.args[2]
        if _reads(below, "relax.less", numbers) and _reads(counted, "relax.add", numbers):
            return held[numbers][0], True
    return None


def _reads(value: Any, name: str, numbers: relax.Var) -> bool:
    return ir.is_op(value, name) and value.args[0].same_as(numbers)


def _name(table: tvm.ir.Expr, bound: dict[relax.Var, Any]) -> str:
    """What a table is called, without the casts on its way."""
    while ir.is_op(bound.get(table), "relax.astype"):
        table = bound[table].args[0]
    return table.name if isinstance(table, relax.Var) else "a constant"
