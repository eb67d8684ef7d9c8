"""ONNX's recurrent layers as recurrences over time: their gates in the order of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax
from tvm.relax import op

from autocast.frontend.importing.loops import looped
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


def loop_over(
    builder: relax.BlockBuilder,
    count: Any,
    states: Sequence[relax.Expr],
    captured: Sequence[relax.Expr],
    step: Callable[[relax.Expr, list[relax.Expr], Sequence[relax.Expr]], tuple[relax.Expr, list[relax.Expr]]],
    reverse: bool,
) -> tuple[relax.Expr, list[relax.Expr]]:
    """The rows of `count` steps, an expression in the names of dimensions, and the states after the last.

    Parameters
    ----------
    captured
        What steps read, of which one has `count` in its shape.
    step
        From its number, the states before it, and what is captured, to its row, which is as the first state, and the
        states after it.
    reverse
        Whether the last step comes first.
    """
    emit, one = builder.emit, relax.const(1, "int64")

    def steps() -> relax.Expr:
        return emit(op.reshape(op.shape_to_tensor(relax.ShapeExpr([count])), []))

    def each(carried: Sequence[relax.Expr], outer: Sequence[relax.Expr]) -> list[relax.Expr]:
        done, *before, rows = carried
        number = emit(op.subtract(emit(op.subtract(steps(), one)), done)) if reverse else done
        row, after = step(number, before, outer)
        place, row = emit(op.reshape(number, [1])), emit(op.expand_dims(row, 0))
        following = emit(op.add(done, one))
        written = emit(own.index_copy(rows, place, row, axis=0))
        return [emit(op.less(following, steps())), following, *after, written]

    start = relax.const(0, "int64")
    rows = emit(op.zeros((count, *dims(states[0])), dtype_of(states[0])))
    first = emit(op.less(start, steps()))
    _, *after, whole = looped(builder, "steps", first, [start, *states, rows], captured, each)
    return whole, after
