"""Reductions: long sums need float32, and an extreme is looked for among what it was chosen from."""

from __future__ import annotations

from type_hints.helpers import full
from type_hints.registry import rule

_SUM = "a long sum: in low precision late terms vanish beside the total, and float16 overflows at 65504"
_PRODUCT = "a long product: roundings add up, and float16 leaves its range after a few factors"
_SQUARES = "a sum of squared differences: cancels, and float16 overflows for differences beyond 255"
_CHOSEN = "which elements equal it is asked by gradients and masks: none equals it where it alone is rounded"

RULES = (
    rule("relax.sum", full(1), why=_SUM),
    rule("relax.mean", full(1), why=_SUM),
    rule("relax.cumsum", full(1), why=_SUM),
    rule("relax.collapse_sum_to", full(1), why=f"the gradient of a broadcast, {_SUM}"),
    rule(
        "relax.collapse_sum_like", full((0,)), why=f"the gradient of a broadcast, {_SUM}; its target gives a shape only"
    ),
    rule("relax.prod", full(1), why=_PRODUCT),
    rule("relax.cumprod", full(1), why=_PRODUCT),
    rule("relax.variance", full(1), why=_SQUARES),
    rule("relax.std", full(1), why=_SQUARES),
    rule("relax.max", full(1), why=_CHOSEN),
    rule("relax.min", full(1), why=_CHOSEN),
    rule("relax.median", full(1), why="rounding creates ties, which change the index that it also returns"),
)
