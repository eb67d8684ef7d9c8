"""Losses."""

from __future__ import annotations

from type_hints.helpers import follow, full
from type_hints.registry import rule

RULES = (
    rule(
        "relax.nn.cross_entropy",
        follow((0,)),
        why="kernels load, exponentiate and add in float32; logits are a product's, rounded once; the loss is float32",
    ),
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
