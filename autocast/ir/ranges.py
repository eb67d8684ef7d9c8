"""Between which integers the elements of a tensor lie, as far as the operators that make it say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from tvm import relax

from autocast.ir.views import dtype_of, is_constant, is_op

#: Their elements are some of their first operand's.
_SELECTING = (
    "relax.broadcast_to",
    "relax.expand_dims",
    "relax.flatten",
    "relax.flip",
    "relax.permute_dims",
    "relax.repeat",
    "relax.reshape",
    "relax.squeeze",
    "relax.strided_slice",
    "relax.take",
    "relax.tile",
)

#: Operators that are looked at on the way from an element to a tensor whose dtype says what it may be: what is read
#: twice is looked at twice, and so is all that it is made of.
_STEPS = 8


class Range(NamedTuple):
    """All integers from `low` to `high`, both included."""

    low: int
    high: int

    @property
    def magnitude(self) -> int:
        """The largest distance from 0."""
        return max(abs(self.low), abs(self.high))

    def holds(self, other: Range) -> bool:
        """Whether no integer of `other` lies outside."""
        return self.low <= other.low and other.high <= self.high


def range_of(expr: relax.Expr, bound: Mapping[relax.Var, relax.Expr], steps: int = _STEPS) -> Range | None:
    """The integers that elements of `expr` may be, where `bound` has what variables are; None of other numbers."""
    whole = _whole(expr)
    found = _computed(expr, bound, steps) if whole is not None and steps else None
    return found if found is not None and whole is not None and whole.holds(found) else whole


def never_wraps(expr: relax.Expr, bound: Mapping[relax.Var, relax.Expr]) -> bool:
    """Whether the operator that computes `expr` gives integers that its dtype holds, whatever its operands are."""
    whole, found = _whole(expr), _computed(expr, bound, _STEPS)
    return whole is not None and found is not None and whole.holds(found)


def _whole(expr: relax.Expr) -> Range | None:
    """All integers that the dtype of `expr` holds."""
    dtype = dtype_of(expr)
    if dtype == "bool":
        return Range(0, 1)
    if dtype is None or "int" not in dtype:
        return None
    return Range(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def _computed(expr: relax.Expr, bound: Mapping[relax.Var, relax.Expr], steps: int) -> Range | None:
    """The same by the operator that computes it, before it wraps around."""
    if is_constant(expr):
        numbers = expr.value.numpy()
        return Range(int(numbers.min()), int(numbers.max())) if numbers.size else None
    value = bound.get(expr, expr)
    if not isinstance(value, relax.Call):
        return range_of(value, bound, steps - 1) if value is not expr else None

    def of(argument: relax.Expr) -> Range | None:
        return range_of(argument, bound, steps - 1)

    if is_op(value, "relax.astype", *_SELECTING):
        return of(value.args[0])
    if is_op(value, "relax.concat", "relax.stack") and isinstance(value.args[0], relax.Tuple):
        parts = [part for part in map(of, value.args[0].fields) if part is not None]
        return Range(min(part.low for part in parts), max(part.high for part in parts)) if parts else None
    if not is_op(value, "relax.add", "relax.subtract", "relax.multiply"):
        return None
    left, right = map(of, value.args)
    if left is None or right is None:
        return None
    if is_op(value, "relax.add"):
        return Range(left.low + right.low, left.high + right.high)
    if is_op(value, "relax.subtract"):
        return Range(left.low - right.high, left.high - right.low)
    corners = [one * other for one in left for other in right]
    return Range(min(corners), max(corners))
