"""Dropout: a linear function whose factors are random numbers that can be computed again."""

from __future__ import annotations

from autocast.ir.operators import seeded_dropout
from autocast.training.gradients.registry import Adjoint, Backward, gradient, not_differentiable


def _seeded_dropout(b: Backward) -> list[Adjoint]:
    return [seeded_dropout(b.adjoint, b.call.args[1], attrs=b.call.attrs), None]


RULES = (
    gradient("relax.nn.seeded_dropout", _seeded_dropout, why="the same dropout of the adjoint: its mask is not stored"),
    not_differentiable(
        "relax.nn.dropout", why="it drops nothing: autocast.training.seed_dropout gives it random numbers"
    ),
)
