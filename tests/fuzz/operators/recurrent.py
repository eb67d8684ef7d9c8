"""Recurrences over time, step by step, and their adjoints from the last step to the first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from tests.fuzz.operators.elementwise import sigmoid
from tests.fuzz.operators.reductions import stored, wide
from tests.fuzz.operators.registry import operator
from tests.fuzz.values import FUNCTION, Tensor, elementwise, linear, moved

_plus, _times, _minus = (
    lambda x, y, f=f: elementwise(f, x, y).rounded(None) for f in (np.add, np.multiply, np.subtract)
)


def _function(f: Callable[..., np.ndarray]) -> Callable[[Tensor], Tensor]:
    return lambda x: elementwise(f, x).rounded(None, FUNCTION)


_sigmoid, _tanh, _relu = _function(sigmoid), _function(np.tanh), _function(lambda x: np.maximum(x, 0))
_one_minus = _function(lambda y: 1 - y)
_slope_of_sigmoid, _slope_of_tanh = _function(lambda y: y * (1 - y)), _function(lambda y: 1 - y * y)


def _gates(x: Tensor, count: int) -> list[Tensor]:
    size = x.shape[-1] // count
    return [moved(lambda a, k=k: a[..., k * size : (k + 1) * size], x) for k in range(count)]


def _joined(parts: list[Tensor]) -> Tensor:
    return moved(lambda *a: np.concatenate(a, -1), *parts)


def _product(weight: Tensor, x: Tensor, transposed: bool = True) -> Tensor:
    matrix = moved(np.transpose, wide(weight)) if transposed else wide(weight)
    return linear(np.matmul, x.shape[-1], x, matrix)


def _times_of(call: relax.Call, x: Tensor, backward: bool = False) -> list[int]:
    times = list(range(x.shape[0]))
    return times[::-1] if bool(call.attrs.reverse) != backward else times


def _run(
    call: relax.Call, gates: Tensor, weight: Tensor, step: Callable[..., tuple[Tensor, ...]], *states: Tensor
) -> Any:
    first = states
    states = tuple(map(wide, states))
    rows: dict[int, Tensor] = {}
    for time in _times_of(call, gates):
        states = step(moved(lambda a, t=time: a[t], wide(gates)), *states)
        rows[time] = states[0]
    return _stacked(rows, (0, *first[0].shape), weight.dtype), *(
        stored(x, y.dtype) for x, y in zip(states, first, strict=True)
    )


def _stacked(rows: dict[int, Tensor], nothing: tuple[int, ...], dtype: str) -> Tensor:
    if not rows:
        return Tensor.exact(np.zeros(nothing), dtype)
    return stored(moved(lambda *a: np.stack(a), *(rows[time] for time in sorted(rows))), dtype)


@operator("relax.nn.lstm")
def _lstm(call: relax.Call, gates: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor) -> Any:
    def step(x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = _gates(_plus(x, _product(weight, hidden)), 4)
        cell = _plus(_times(_sigmoid(f), cell), _times(_sigmoid(i), _tanh(g)))
        return _times(_sigmoid(o), _tanh(cell)), cell

    return _run(call, gates, weight, step, hidden, cell)


@operator("relax.nn.gru")
def _gru(call: relax.Call, gates: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor) -> Any:
    def step(x: Tensor, hidden: Tensor) -> tuple[Tensor]:
        (x_r, x_z, x_n), (r, z, n) = _gates(x, 3), _gates(_product(weight, hidden), 3)
        new = _tanh(_plus(x_n, _times(_sigmoid(_plus(x_r, r)), _plus(n, wide(bias)))))
        return (_plus(new, _times(_sigmoid(_plus(x_z, z)), _minus(hidden, new))),)

    return _run(call, gates, weight, step, hidden)


@operator("relax.nn.rnn")
def _rnn(call: relax.Call, gates: Tensor, weight: Tensor, hidden: Tensor) -> Any:
    function = _tanh if str(call.attrs.activation) == "tanh" else _relu
    return _run(call, gates, weight, lambda x, hidden: (function(_plus(x, _product(weight, hidden))),), hidden)


@operator("relax.grad.lstm_backward")
def _lstm_backward(
    call: relax.Call, sums: Tensor, weight: Tensor, cell: Tensor, g: Tensor, g_hidden: Tensor, g_cell: Tensor
) -> Any:
    steps: dict[int, tuple[list[Tensor], Tensor, Tensor]] = {}
    state = wide(cell)
    for time in _times_of(call, sums):
        i, f, c, o = _gates(moved(lambda a, t=time: a[t], wide(sums)), 4)
        gates = [_sigmoid(i), _sigmoid(f), _tanh(c), _sigmoid(o)]
        after = _plus(_times(gates[1], state), _times(gates[0], gates[2]))
        steps[time], state = (gates, state, _tanh(after)), after
    of_hidden, of_cell, rows = wide(g_hidden), wide(g_cell), {}
    for time in _times_of(call, sums, backward=True):
        (i, f, c, o), before, squashed = steps[time]
        of_hidden = _plus(of_hidden, moved(lambda a, t=time: a[t], wide(g)))
        of_cell = _plus(of_cell, _times(_times(of_hidden, o), _slope_of_tanh(squashed)))
        rows[time] = _joined(
            [
                _times(_times(of_cell, c), _slope_of_sigmoid(i)),
                _times(_times(of_cell, before), _slope_of_sigmoid(f)),
                _times(_times(of_cell, i), _slope_of_tanh(c)),
                _times(_times(of_hidden, squashed), _slope_of_sigmoid(o)),
            ]
        )
        of_hidden, of_cell = _product(weight, rows[time], transposed=False), _times(of_cell, f)
    of_sums = _stacked(rows, sums.shape, weight.dtype)
    return of_sums, stored(of_hidden, g_hidden.dtype), stored(of_cell, g_cell.dtype)


@operator("relax.grad.gru_backward")
def _gru_backward(call: relax.Call, sums: Tensor, weight: Tensor, previous: Tensor, g: Tensor, g_hidden: Tensor) -> Any:
    of_hidden, rows = wide(g_hidden), {}
    for time in _times_of(call, sums, backward=True):
        at = partial(moved, lambda a, t=time: a[t])
        r, z, x, n = _gates(at(wide(sums)), 4)
        r, z = _sigmoid(r), _sigmoid(z)
        new = _tanh(_plus(x, _times(r, n)))
        of_hidden = _plus(of_hidden, at(wide(g)))
        of_new = _times(_times(of_hidden, _one_minus(z)), _slope_of_tanh(new))
        of_reset = _times(_times(of_new, n), _slope_of_sigmoid(r))
        of_update = _times(_times(of_hidden, _minus(at(wide(previous)), new)), _slope_of_sigmoid(z))
        rows[time] = _joined([of_reset, of_update, of_new, _times(of_new, r)])
        products = _product(weight, _joined([of_reset, of_update, _times(of_new, r)]), transposed=False)
        of_hidden = _plus(_times(of_hidden, z), products)
    return _stacked(rows, sums.shape, weight.dtype), stored(of_hidden, g_hidden.dtype)


@operator("relax.grad.rnn_backward")
def _rnn_backward(call: relax.Call, hiddens: Tensor, weight: Tensor, g: Tensor, g_hidden: Tensor) -> Any:
    slope = _slope_of_tanh if str(call.attrs.activation) == "tanh" else _function(lambda y: (y > 0) * 1.0)
    of_hidden, rows = wide(g_hidden), {}
    for time in _times_of(call, hiddens, backward=True):
        at = partial(moved, lambda a, t=time: a[t])
        of_hidden = _plus(of_hidden, at(wide(g)))
        rows[time] = _times(of_hidden, slope(at(wide(hiddens))))
        of_hidden = _product(weight, rows[time], transposed=False)
    return _stacked(rows, hiddens.shape, weight.dtype), stored(of_hidden, g_hidden.dtype)
