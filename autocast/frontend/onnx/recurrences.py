"""ONNX's recurrent layers as recurrences over time: their gates in the order of torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax
from tvm.relax import op

from autocast.frontend.importing.loops import counted
from autocast.ir import dims, dtype_of
from autocast.operators import own

#: The places of torch's gates among those of ONNX.
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}

#: Sums of an LSTM's gates by which a cell stays as it is: nothing comes in, and all is kept. float16 has them, too.
_KEEPS = (-3e4, 3e4, 0.0, 0.0)


def recurrence(
    builder: relax.BlockBuilder,
    name: str,
    x: relax.Expr,
    weights: tuple[relax.Expr, relax.Expr, relax.Expr | None, relax.Expr | None],
    first: list[relax.Expr],
    activation: Callable[[relax.Expr], relax.Expr],
    reverse: bool,
    is_on: relax.Expr | None = None,
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
    is_on
        (steps, batch, 1): where it is false, the cell of an LSTM stays.
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
            if is_on is not None:
                keeps = np.repeat(np.array(_KEEPS, "float32"), units)
                gates = emit(op.where(is_on, gates, emit(op.astype(relax.const(keeps), dtype_of(gates)))))
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


def recurrence_of_lengths(
    builder: relax.BlockBuilder,
    recurrence: Callable[..., list[relax.Expr]],
    x: relax.Expr,
    reverse: bool,
    lengths: relax.Expr,
) -> list[relax.Expr]:
    """As a `recurrence` of x, of sequences that end before the last step: their rows from there on are 0.

    What is computed there is read by nobody, and the last state of a sequence without steps is any. Those that are to
    be read from their ends are turned before, and their rows after it.
    """
    emit, one, zero = builder.emit, relax.const(1, "int64"), relax.const(0, "int64")
    steps, batch, _ = dims(x)
    lengths = emit(op.reshape(op.astype(lengths, "int64"), [1, batch]))
    step, place = (
        op.reshape(op.arange(0, size, 1, "int64"), shape) for size, shape in ((steps, [steps, 1]), (batch, [1, batch]))
    )
    is_on, last = emit(op.less(step, lengths)), emit(op.subtract(lengths, one))

    def rows_at(tensor: relax.Expr, at: relax.Expr) -> relax.Expr:
        """Of a tensor of all steps, the step `at` of each sequence."""
        rows = op.reshape(tensor, [steps * batch, *dims(tensor)[2:]])
        places = emit(op.add(op.multiply(at, counted(builder, batch)), place))
        return emit(op.reshape(op.take(rows, op.reshape(places, [-1]), 0, "clip"), [*dims(places), *dims(tensor)[2:]]))

    turned = emit(op.where(is_on, op.subtract(last, step), step))
    x = rows_at(x, turned) if reverse else x
    is_on = emit(op.expand_dims(is_on, 2))
    rows, hidden, *cell = recurrence(x=x, reverse=False, is_on=is_on)
    end = emit(op.squeeze(rows_at(rows, emit(op.maximum(last, zero))), [0]))
    hidden = emit(op.astype(end, dtype_of(hidden)))
    rows = rows_at(rows, turned) if reverse else rows
    return [emit(op.where(is_on, rows, emit(op.zeros_like(rows)))), hidden, *cell]
