"""Recurrences over time in ONNX: its `LSTM`, `GRU` and `RNN`, whose products with inputs are with the identity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autocast.torch_target.rows.recurrent import GRU, LSTM, RNN


def recurrent_forms(op: Any) -> dict[Any, Callable[..., Any]]:
    """How torch's exporter is to write our operators, in the operators `op` of an opset."""

    def arranged(tensor: Any, order: Sequence[int], axis: int, like: Any) -> Any:
        """The parts of each gate in the order of ONNX, in the dtype of the states."""
        parts = op.Split(tensor, axis=axis, num_outputs=len(order)) if len(order) > 1 else [tensor]
        return op.CastLike(op.Concat(*(parts[place] for place in order), axis=axis), like)

    def run(
        layer: Callable[..., Any],
        order: Sequence[int],
        gates: Any,
        weight: Any,
        states: Sequence[Any],
        reverse: bool,
        bias: Any = None,
        **attributes: Any,
    ) -> tuple[Any, ...]:
        first = op.Constant(value_ints=[0])
        rows = op.Shape(weight, start=0, end=1)
        identity = op.CastLike(op.EyeLike(op.ConstantOfShape(op.Concat(rows, rows, axis=0))), states[0])
        results = layer(
            arranged(gates, order, 2, states[0]),
            op.Unsqueeze(identity, first),
            op.Unsqueeze(arranged(weight, order, 0, states[0]), first),
            bias,
            None,
            *(op.Unsqueeze(state, first) for state in states),
            hidden_size=int(weight.shape[1]),
            direction="reverse" if reverse else "forward",
            **attributes,
        )
        hiddens, *last = results
        every = op.CastLike(op.Squeeze(hiddens, op.Constant(value_ints=[1])), weight)
        return every, *(op.Squeeze(state, first) for state in last)

    def lstm(gates: Any, weight: Any, hidden: Any, cell: Any, reverse: bool) -> tuple[Any, ...]:
        return run(op.LSTM, (0, 3, 1, 2), gates, weight, (hidden, cell), reverse)

    def gru(gates: Any, weight: Any, bias: Any, hidden: Any, reverse: bool) -> tuple[Any, ...]:
        units = int(weight.shape[1])
        zeros = op.ConstantOfShape(op.Constant(value_ints=[5 * units]))
        biases = op.Concat(op.CastLike(zeros, hidden), op.CastLike(bias, hidden), axis=0)
        biases = op.Unsqueeze(biases, op.Constant(value_ints=[0]))
        return run(op.GRU, (1, 0, 2), gates, weight, (hidden,), reverse, biases, linear_before_reset=1)

    def rnn(gates: Any, weight: Any, hidden: Any, reverse: bool, activation: str) -> tuple[Any, ...]:
        return run(op.RNN, (0,), gates, weight, (hidden,), reverse, activations=[activation.capitalize()])

    return {LSTM: lstm, GRU: gru, RNN: rnn}
