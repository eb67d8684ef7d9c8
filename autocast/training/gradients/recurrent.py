"""Recurrences over time: what each step's gates are functions of comes from one product, and one operator goes back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.relax import op

from autocast.ir import dims
from autocast.operators import own
from autocast.training.gradients.registry import Adjoint, Backward, gradient


def _lstm(b: Backward) -> list[Adjoint]:
    gates, weight, hidden, cell = b.call.args
    previous = _previous(b, hidden)
    sums = b.emit(op.add(gates, _products(b, previous, weight)))
    adjoints = [_or_zeros(b, index) for index in range(3)]
    back = b.emit(own.lstm_backward(sums, weight, cell, *adjoints, attrs=b.call.attrs))
    of_sums, of_hidden, of_cell = (b.emit(relax.TupleGetItem(back, index)) for index in range(3))
    return [of_sums, _of_weight(b, of_sums, previous) if b.needs[1] else None, of_hidden, of_cell]


def _gru(b: Backward) -> list[Adjoint]:
    gates, weight, bias, hidden = b.call.args
    units = int(dims(bias)[0])
    previous = _previous(b, hidden)
    products = _products(b, previous, weight)
    both, new = (_units(b, gates, *place) for place in ((0, 2 * units), (2 * units, 3 * units)))
    also, recurrent = (_units(b, products, *place) for place in ((0, 2 * units), (2 * units, 3 * units)))
    sums = b.emit(op.concat([op.add(both, also), new, op.add(recurrent, bias)], axis=2))
    adjoints = [_or_zeros(b, index) for index in range(2)]
    back = b.emit(own.gru_backward(sums, weight, previous, *adjoints, attrs=b.call.attrs))
    of_sums, of_hidden = (b.emit(relax.TupleGetItem(back, index)) for index in range(2))
    of_recurrent = _units(b, of_sums, 3 * units, 4 * units)
    of_products = b.emit(op.concat([_units(b, of_sums, 0, 2 * units), of_recurrent], axis=2))
    return [
        _units(b, of_sums, 0, 3 * units),
        _of_weight(b, of_products, previous) if b.needs[1] else None,
        op.sum(of_recurrent, [0, 1]),
        of_hidden,
    ]


def _rnn(b: Backward) -> list[Adjoint]:
    _, weight, hidden = b.call.args
    hiddens = b.emit(relax.TupleGetItem(b.result, 0))
    adjoints = [_or_zeros(b, index) for index in range(2)]
    back = b.emit(own.rnn_backward(hiddens, weight, *adjoints, attrs=b.call.attrs))
    of_sums, of_hidden = (b.emit(relax.TupleGetItem(back, index)) for index in range(2))
    return [of_sums, _of_weight(b, of_sums, _previous(b, hidden)) if b.needs[1] else None, of_hidden]


def _previous(b: Backward, first: relax.Expr) -> relax.Var:
    """The hidden state that each step began with."""
    hiddens = b.emit(relax.TupleGetItem(b.result, 0))
    begin, steps = b.emit(op.expand_dims(first, 0)), dims(hiddens)[0]
    reverse = bool(b.call.attrs.reverse)
    every = b.emit(op.concat([hiddens, begin] if reverse else [begin, hiddens], axis=0))
    return b.emit(op.strided_slice(every, [0], [int(reverse)], [steps + int(reverse)]))


def _products(b: Backward, states: relax.Expr, weight: relax.Expr) -> relax.Var:
    return b.emit(op.matmul(states, b.emit(op.permute_dims(weight))))


def _of_weight(b: Backward, of_products: relax.Expr, previous: relax.Expr) -> relax.Expr:
    """One product that sums over all steps and the batch."""
    return op.matmul(b.emit(op.permute_dims(_rows(b, of_products))), _rows(b, previous))


def _rows(b: Backward, steps: relax.Expr) -> relax.Var:
    *rows, columns = dims(steps)
    return b.emit(op.reshape(steps, relax.ShapeExpr([math.prod(rows[1:], start=rows[0]), columns])))


def _units(b: Backward, tensor: relax.Expr, begin: int, end: int) -> relax.Var:
    return b.emit(op.strided_slice(tensor, [2], [begin], [end]))


def _or_zeros(b: Backward, index: int) -> Any:
    """The adjoint of a field of the result, which nothing may depend on."""
    adjoint = b.adjoint[index] if isinstance(b.adjoint, Sequence) else b.adjoint
    field = b.result.ty.fields[index]
    return b.emit(op.zeros(field.shape, str(field.dtype))) if adjoint is None else adjoint


_TIME = "the adjoints of all steps' sums by one operator that goes back through time, then products over all steps"

RULES = (
    gradient("relax.nn.lstm", _lstm, why=f"{_TIME}; cells are computed again"),
    gradient("relax.nn.gru", _gru, why=_TIME),
    gradient("relax.nn.rnn", _rnn, why=f"{_TIME}; slopes are functions of the results"),
)
