"""How a recurrent cell keeps its state: what a gate lets through of one tensor, added to another.

LSTM's `forget * c + input * candidate` and GRU's `update * (h - candidate) + candidate` are such sums, of which each is
a term of the next. A sum that is rounded at every step drifts, so this is an operator with a casting rule of its own,
and so is its gradient, which is kept in the same way from the last step to the first.

Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997 (the state as a sum that errors flow back through);
Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014 (GRU).
"""

from __future__ import annotations

from tvm import relax

from autocast.operators.operator import Expansion, define, like


def _expand(e: Expansion) -> relax.Expr:
    gate, x, y = e.operands
    return gate * x + y


def _backward(e: Expansion) -> list[relax.Expr]:
    gate, x, g = e.operands
    return [g * x, g * gate]


gated_add = define(
    "relax.nn.gated_add", "gate x y", result=like(2), expand=_expand, summary="gate x + y, element by element"
)
gated_add_backward = define(
    "relax.grad.gated_add_backward",
    "gate x g",
    result=like(0, 1),
    expand=_backward,
    summary="g x and g gate, the adjoints of gate and x in gate x + y",
)
