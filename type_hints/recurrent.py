"""Recurrences over time: states, and the sums that make them, are float32 from the first step to the last."""

from __future__ import annotations

from type_hints.helpers import low
from type_hints.registry import rule

_STEPS = "each step multiplies the low weight by rounded states; states, which add up, and what is added stay float32"
_BACK = "a product with the low weight at each step back; the adjoints of states, which add up, and sums stay float32"

RULES = (
    rule("relax.nn.lstm", low((1,), keep=(0, 2, 3)), why=_STEPS),
    rule("relax.nn.gru", low((1,), keep=(0, 2, 3)), why=f"{_STEPS}; so does the bias between product and reset gate"),
    rule("relax.nn.rnn", low((1,), keep=(0, 2)), why=_STEPS),
    rule("relax.grad.lstm_backward", low((1,), keep=(0, 2, 3, 4, 5)), why=_BACK),
    rule("relax.grad.gru_backward", low((1,), keep=(0, 2, 3, 4)), why=_BACK),
    rule("relax.grad.rnn_backward", low(2, keep=(2, 3)), why=f"{_BACK}; slopes are of results that were stored low"),
)
