"""Softmax and normalizations: statistics over a row, and a division by them."""

from __future__ import annotations

from type_hints.helpers import full
from type_hints.registry import rule

_SOFTMAX = "exponentials of a row, summed: scores' absolute rounding becomes relative, and small terms vanish"
_STATISTICS = "mean and variance are long sums that cancel; TVM wants all arguments in one dtype"

RULES = (
    rule("relax.nn.softmax", full(1), why=_SOFTMAX),
    rule("relax.nn.log_softmax", full(1), why=f"{_SOFTMAX}; the logarithm of a tiny probability needs its digits"),
    rule("relax.nn.layer_norm", full(3), why=_STATISTICS),
    rule("relax.nn.group_norm", full(3), why=f"{_STATISTICS}, and refuses bfloat16"),
    rule("relax.nn.instance_norm", full(3), why=_STATISTICS),
    rule("relax.nn.rms_norm", full(2), why="a long sum of squares: float16 overflows; TVM wants one dtype"),
    rule("relax.collective.batch_norm", full(5), why="as batch_norm, whose statistics are those of several processes"),
    rule(
        "relax.nn.batch_norm",
        full(5),
        why=f"{_STATISTICS}; running statistics change by less than a bfloat16 can hold",
    ),
)
