"""Comparisons, booleans, bits."""

from __future__ import annotations

from type_hints.helpers import full, untouched
from type_hints.registry import rule

_COMPARES = "comparing is exact, but rounding before it makes different values equal"
_RANGE = "float16 turns large finite values into inf, which this would report"
_BOOLEANS = "booleans and integers have no precision to choose"

RULES = (
    rule("relax.equal", full(2), why=_COMPARES),
    rule("relax.not_equal", full(2), why=_COMPARES),
    rule("relax.less", full(2), why=_COMPARES),
    rule("relax.less_equal", full(2), why=_COMPARES),
    rule("relax.greater", full(2), why=_COMPARES),
    rule("relax.greater_equal", full(2), why=_COMPARES),
    rule("relax.isfinite", full(1), why=_RANGE),
    rule("relax.isinf", full(1), why=_RANGE),
    rule("relax.isnan", full(1), why="asks about the value that the model computed, not about a rounded copy"),
    rule("relax.logical_and", untouched(), why=_BOOLEANS),
    rule("relax.logical_or", untouched(), why=_BOOLEANS),
    rule("relax.logical_xor", untouched(), why=_BOOLEANS),
    rule("relax.logical_not", untouched(), why=_BOOLEANS),
    rule("relax.bitwise_and", untouched(), why=_BOOLEANS),
    rule("relax.bitwise_or", untouched(), why=_BOOLEANS),
    rule("relax.bitwise_xor", untouched(), why=_BOOLEANS),
    rule("relax.bitwise_not", untouched(), why=_BOOLEANS),
    rule("relax.left_shift", untouched(), why=_BOOLEANS),
    rule("relax.right_shift", untouched(), why=_BOOLEANS),
)
