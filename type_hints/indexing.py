"""Reading and writing by index, and choosing: elements change place, never value."""

from __future__ import annotations

from type_hints.helpers import follow, full
from type_hints.registry import rule

_READS = "moves data only; indices are integers"
_WRITES = "moves data only; data and updates must agree, indices are integers"
_RANKS = "rounding creates ties, which change the indices"

RULES = (
    rule("relax.take", follow(1), why=_READS),
    rule("relax.gather_elements", follow(1), why=_READS),
    rule("relax.gather_nd", follow(1), why=_READS),
    rule("relax.index_tensor", follow(1), why=_READS),
    rule("relax.strided_slice", follow(1), why="moves data only"),
    rule("relax.dynamic_strided_slice", follow(1), why=_READS),
    rule("relax.scatter_elements", follow((0, 2)), why=_WRITES),
    rule("relax.scatter_nd", follow((0, 2)), why=_WRITES),
    rule("relax.index_put", follow((0, 2)), why=_WRITES),
    rule("relax.nn.index_copy", follow((0, 2)), why=_WRITES),
    rule("relax.slice_scatter", follow(2), why="moves data only; data and source must agree"),
    rule(
        "relax.where", follow((1, 2)), why="gives back one of its branches, which must agree; the condition is boolean"
    ),
    rule("relax.sort", follow(1), why="moves data only: rounding keeps the order"),
    rule("relax.argsort", full(1), why=_RANKS),
    rule("relax.topk", full(1), why=_RANKS),
    rule("relax.argmax", full(1), why=_RANKS),
    rule("relax.argmin", full(1), why=_RANKS),
    rule("relax.unique", full(1), why="rounding makes different values equal"),
    rule("relax.nonzero", full(1), why="rounding to float16 makes small values zero"),
    rule("relax.bucketize", full(2), why="a rounded value can cross a boundary"),
)
