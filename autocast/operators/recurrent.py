"""Recurrences over time, with their operations: products, as what else a step does is next to nothing."""

from __future__ import annotations

from math import prod

from tvm import relax

from autocast.operators.row import Kind, rows


def _steps(call: relax.Call, args: list[tuple[int, ...]], result: tuple[int, ...]) -> int:
    """A product of each step's states with the recurrent weight, which is the second argument."""
    steps, batch, _ = args[0]
    return 2 * steps * batch * prod(args[1])


ROWS = rows(
    Kind.RECURRENCE, "nn.lstm nn.gru nn.rnn grad.lstm_backward grad.gru_backward grad.rnn_backward", flops=_steps
)
