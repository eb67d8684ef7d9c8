"""Losses."""

from __future__ import annotations

from type_hints.helpers import full
from type_hints.registry import rule

RULES = (
    rule("relax.nn.cross_entropy", full((0,)), why="a logarithm and a mean over the batch; one kernel from the logits"),
    rule(
        "relax.nn.cross_entropy_with_logits",
        full(2),
        why="a logarithm and a mean over the batch; training sees nothing but its digits",
    ),
    rule(
        "relax.nn.nll_loss",
        full((0, 2)),
        why="a mean over the batch; training sees nothing but its digits; predictions and weights must agree",
    ),
)
