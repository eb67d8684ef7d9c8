"""Attention: one backward operator, which computes the probabilities again from queries and keys."""

from __future__ import annotations

from tvm import relax
from tvm.relax import op

from autocast.ir import same_shape
from autocast.operators import own
from autocast.training.gradients.registry import Adjoint, Backward, gradient, not_differentiable
from autocast.training.gradients.shapes import known_shape, reshaped


def _attention(b: Backward) -> list[Adjoint]:
    query, key, value, *bias = b.call.args
    named = [_named_as_scores(b, one, query, key) for one in bias]
    adjoints = b.emit(own.attention_backward(query, key, value, b.adjoint, *named, attrs=b.call.attrs))
    found = [adjoints[index] if needed else None for index, needed in enumerate(b.needs)]
    if bias and b.needs[3] and named[0] is not bias[0]:
        found[3] = reshaped(adjoints[3], bias[0])
    return found


def _named_as_scores(b: Backward, bias: relax.Expr, query: relax.Expr, key: relax.Expr) -> relax.Expr:
    """A bias whose sizes, known at run time only, have the names of those of the scores."""
    (batch, queries, heads, _), (_, keys, *_) = known_shape(query), known_shape(key)
    sizes, scores = known_shape(bias), (batch, heads, queries, keys)
    named = [size if isinstance(size, int) else of for size, of in zip(sizes, scores[-len(sizes) :], strict=True)]
    return bias if same_shape(named, sizes) else b.emit(op.reshape(bias, relax.ShapeExpr(named)))


_SCORES = "with P = softmax(S): dV = P' G, dS = P (dP - sum(dP P)), dQ = dS K, dK = dS' Q"

RULES = (
    gradient("relax.nn.attention", _attention, why=_SCORES),
    gradient("relax.nn.attention_bias", _attention, why=f"{_SCORES}, dbias = dS"),
    not_differentiable(
        "relax.nn.attention_var_len",
        why="sequences are packed by run-time lengths: pad them, and mask attention",
    ),
)
