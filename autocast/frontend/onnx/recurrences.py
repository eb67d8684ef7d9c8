"""ONNX's recurrent layers as recurrences over time: their gates in the order of torch."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax
from tvm.relax import op

from autocast.ir import dims, dtype_of
from autocast.operators import own

#: The places of torch's gates among those of ONNX.
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}


def recurrence(
    builder: relax.BlockBuilder,
    name: str,
    x: relax.Expr,
    weights: tuple[relax.Expr, relax.Expr, relax.Expr | None, relax.Expr | None],
    first: list[relax.Expr],
    activation: Callable[[relax.Expr], relax.Expr],
    reverse: bool,
) -> list[relax.Expr]:
    """One direction of a layer of ONNX: the hidden states of all steps, and the last states.

    Parameters
    ----------
    builder
    name
        `LSTM`, `GRU` (whose reset gate comes after the product) or `RNN`.
    x
        (steps, batch, input).
    weights
        W, R, and both halves of the bias or None.
    first
        The first states.
    activation
        Of a plain recurrent net: tanh or relu.
    reverse
        Whether it begins with the last step.
    """
    emit, order = builder.emit, _ORDER[name]

    def arranged(tensor: relax.Expr) -> relax.Expr:
        if len(order) == 1:
            return tensor
        whole = emit(op.split(tensor, len(order), axis=0))
        return emit(op.concat([emit(relax.TupleGetItem(whole, place)) for place in order], axis=0))

    w, r, *biases = (None if tensor is None else arranged(tensor) for tensor in weights)
    gates = emit(op.matmul(x, emit(op.permute_dims(w))))
    units = int(dims(r)[1])
    if name != "GRU":
        for bias in biases:
            gates = gates if bias is None else emit(op.add(gates, bias))
        if name == "LSTM":
            call = own.lstm(gates, r, *first, reverse=reverse)
        else:
            function = "relu" if activation is op.nn.relu else "tanh"
            call = own.rnn(gates, r, *first, reverse=reverse, activation=function)
    else:
        new = zeros = emit(op.zeros((units,), dtype_of(x)))
        if biases[0] is not None:
            places = ((0, 2 * units), (2 * units, 3 * units))
            both, new = (emit(op.strided_slice(biases[1], [0], [begin], [end])) for begin, end in places)
            outside = emit(op.concat([both, zeros], axis=0))
            gates = emit(op.add(gates, emit(op.add(biases[0], outside))))
        call = own.gru(gates, r, new, *first, reverse=reverse)
    whole = emit(call)
    return [emit(relax.TupleGetItem(whole, place)) for place in range(len(whole.ty.fields))]
