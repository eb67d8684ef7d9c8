"""Operators that only automatic differentiation makes."""

from __future__ import annotations

from type_hints.helpers import follow, full
from type_hints.registry import rule

_IDENTITY = "gives back its argument; marks it for automatic differentiation"

RULES = (
    rule("relax.grad.no_grad", follow(1), why=_IDENTITY),
    rule("relax.grad.start_checkpoint", follow(1), why=_IDENTITY),
    rule("relax.grad.end_checkpoint", follow(1), why=_IDENTITY),
    rule("relax.grad.max_pool2d_backward", follow(2), why="moves each gradient to the element that won its window"),
    rule("relax.grad.avg_pool2d_backward", follow(2), why="spreads each gradient over a window, added up in float32"),
    rule("relax.grad.nll_loss_backward", full((0, 1, 3)), why="divides by the sum of the batch's weights"),
    rule("relax.grad.take_backward", full(2), why="adds up the gradients of every use of a row: a long sum"),
)
