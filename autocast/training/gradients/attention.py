"""Attention: one backward operator, which computes the probabilities again from queries and keys."""

from __future__ import annotations

from autocast.operators import own
from autocast.training.gradients.registry import Adjoint, Backward, gradient, not_differentiable


def _attention(b: Backward) -> list[Adjoint]:
    query, key, value, *bias = b.call.args
    adjoints = b.emit(own.attention_backward(query, key, value, b.adjoint, *bias, attrs=b.call.attrs))
    return [adjoints[index] if needed else None for index, needed in enumerate(b.needs)]


_SCORES = "with P = softmax(S): dV = P' G, dS = P (dP - sum(dP P)), dQ = dS K, dK = dS' Q"

RULES = (
    gradient("relax.nn.attention", _attention, why=_SCORES),
    gradient("relax.nn.attention_bias", _attention, why=f"{_SCORES}, dbias = dS"),
    not_differentiable(
        "relax.nn.attention_var_len",
        why="sequences are packed by run-time lengths: pad them, and mask attention",
    ),
)
