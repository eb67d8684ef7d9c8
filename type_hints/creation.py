"""Tensors made from nothing but a shape and constants."""

from __future__ import annotations

from type_hints.helpers import follow, untouched
from type_hints.registry import rule

_DTYPE = "its dtype is the author's choice; no tensor argument"
_LIKE = "takes shape and dtype of its argument; zeros and ones are exact in every dtype"

RULES = (
    rule("relax.zeros", untouched(), why=_DTYPE),
    rule("relax.ones", untouched(), why=_DTYPE),
    rule("relax.eye", untouched(), why=_DTYPE),
    rule("relax.arange", untouched(), why=_DTYPE),
    rule("relax.hamming_window", untouched(), why=_DTYPE),
    rule("relax.one_hot", untouched(), why=_DTYPE),
    rule("relax.full", untouched(), why="its dtype is the author's choice; the fill value keeps the dtype it has"),
    rule("relax.zeros_like", follow(1), why=_LIKE),
    rule("relax.ones_like", follow(1), why=_LIKE),
    rule("relax.eye_like", follow(1), why=_LIKE),
    rule("relax.full_like", follow(1), why="takes shape and dtype of its argument; the fill value keeps its dtype"),
)
