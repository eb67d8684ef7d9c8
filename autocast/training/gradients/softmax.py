"""Softmax and log_softmax: from their results, which need no second exponential."""

from __future__ import annotations

from autocast.operators import own
from autocast.operators.own import Operator
from autocast.training.gradients.registry import GradientRule, gradient


def _of_result(backward: Operator) -> GradientRule:
    return lambda b: [backward(b.result, b.adjoint, attrs=b.call.attrs)]


RULES = (
    gradient("relax.nn.softmax", _of_result(own.softmax_backward), why="y (g - sum(g y))"),
    gradient("relax.nn.log_softmax", _of_result(own.log_softmax_backward), why="g - exp(y) sum(g)"),
)
