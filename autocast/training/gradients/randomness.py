"""Dropout, a linear function whose factors are random numbers that can be computed again, and random rounding."""

from __future__ import annotations

from tvm.relax import op

from autocast.ir import dtype_of
from autocast.operators.own import seeded_dropout
from autocast.training.gradients.registry import Adjoint, Backward, gradient, not_differentiable, zero_gradient


def _seeded_dropout(b: Backward) -> list[Adjoint]:
    return [seeded_dropout(b.adjoint, b.call.args[1], attrs=b.call.attrs), None]


def _stochastic_round(b: Backward) -> list[Adjoint]:
    return [op.astype(b.adjoint, dtype_of(b.call.args[0])), None]


RULES = (
    gradient("relax.nn.seeded_dropout", _seeded_dropout, why="the same dropout of the adjoint: its mask is not stored"),
    zero_gradient("relax.nn.seeded_normal", why="of its argument only the shape matters"),
    zero_gradient("relax.nn.seeded_uniform", why="of its argument only the shape matters"),
    gradient("relax.nn.stochastic_round", _stochastic_round, why="the adjoint in the dtype that it had: 1 in the mean"),
    not_differentiable(
        "relax.nn.dropout", why="it drops nothing: autocast.training.seed_dropout gives it random numbers"
    ),
)
