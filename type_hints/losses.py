"""Losses."""

from __future__ import annotations

from type_hints.helpers import full, low
from type_hints.registry import rule

RULES = (
    rule(
        "relax.nn.cross_entropy",
        low((0,)),
        why="logits are the largest tensor of a language model; rounded once, as a product's result; kernels compute "
        "in float32, and so is the loss",
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
