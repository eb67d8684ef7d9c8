"""Recurrences over time as operators of torch, `autocast::lstm`, `autocast::gru` and `autocast::rnn`: their converters.

They are what `relax.nn.lstm` and the others are, so that programs may hold them; torch runs them, step by step, where
one is computed by torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from tvm import relax

from autocast.frontend.helpers import Converter
from autocast.frontend.importer import Importer
from autocast.operators import own

_library = torch.library.Library("autocast", "FRAGMENT")

_ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}

#: A step of a cell: from a step's projected input and the states before it to those after it, the hidden one first.
_Step = Callable[..., tuple[torch.Tensor, ...]]


def define(
    schema: str, results: Callable[..., tuple[torch.Tensor, ...]], run: Callable[..., Any]
) -> torch._ops.OpOverload:
    """An operator that `run` computes, step by step; `results` makes tensors like those that it returns."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(f"autocast::{name}", results, lib=_library)
    _library.impl(name, run, "CompositeExplicitAutograd")
    operator: torch._ops.OpOverload = getattr(torch.ops.autocast, name).default
    return operator


def _results(gates: torch.Tensor, weight: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The hidden states of all steps, and the last states."""
    first = states[0]
    hiddens = weight.new_empty((gates.shape[0], *first.shape))
    return hiddens, *(torch.empty_like(state, memory_format=torch.contiguous_format) for state in states)


def _run(
    gates: torch.Tensor, weight: torch.Tensor, states: tuple[torch.Tensor, ...], step: _Step, reverse: bool
) -> tuple[torch.Tensor, ...]:
    """The hidden states of all steps, in the order of the steps, and the last states."""
    begin = states[0]
    rows = []
    for projected in reversed(gates) if reverse else gates:
        states = step(projected.to(begin.dtype), *states)
        rows.append(states[0].to(weight.dtype))
    rows = rows[::-1] if reverse else rows
    hiddens = torch.stack(rows) if rows else weight.new_empty((0, *begin.shape))
    return hiddens, *(state.clone() for state in states)


class Factor:
    """What the states of all steps are multiplied by: they are rounded to what it is stored in; it is widened once."""

    def __init__(self, matrix: torch.Tensor, wide: torch.dtype) -> None:
        self._stored, self._matrix = matrix.dtype, matrix.to(wide)

    def __call__(self, state: torch.Tensor) -> torch.Tensor:
        """The product, whose operands are rounded, and added as states are."""
        return state.to(self._stored).to(self._matrix.dtype) @ self._matrix


def _lstm(
    gates: torch.Tensor, weight: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, reverse: bool
) -> tuple[torch.Tensor, ...]:
    product = Factor(weight.t(), hidden.dtype)

    def step(x: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, ...]:
        i, f, g, o = (x + product(hidden)).chunk(4, 1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell

    return _run(gates, weight, (hidden, cell), step, reverse)


def _gru(
    gates: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, hidden: torch.Tensor, reverse: bool
) -> tuple[torch.Tensor, ...]:
    product = Factor(weight.t(), hidden.dtype)

    def step(x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (x_r, x_z, x_n), (r, z, n) = x.chunk(3, 1), product(hidden).chunk(3, 1)
        new = torch.tanh(x_n + torch.sigmoid(x_r + r) * (n + bias.to(hidden.dtype)))
        return (torch.sigmoid(x_z + z) * (hidden - new) + new,)

    return _run(gates, weight, (hidden,), step, reverse)


def _rnn(
    gates: torch.Tensor, weight: torch.Tensor, hidden: torch.Tensor, reverse: bool, activation: str
) -> tuple[torch.Tensor, ...]:
    product = Factor(weight.t(), hidden.dtype)

    def step(x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (_ACTIVATIONS[activation](x + product(hidden)),)

    return _run(gates, weight, (hidden,), step, reverse)


LSTM = define(
    "lstm(Tensor gates, Tensor weight, Tensor hidden, Tensor cell, bool reverse) -> (Tensor, Tensor, Tensor)",
    lambda gates, weight, hidden, cell, reverse: _results(gates, weight, hidden, cell),
    _lstm,
)
GRU = define(
    "gru(Tensor gates, Tensor weight, Tensor bias, Tensor hidden, bool reverse) -> (Tensor, Tensor)",
    lambda gates, weight, bias, hidden, reverse: _results(gates, weight, hidden),
    _gru,
)
RNN = define(
    "rnn(Tensor gates, Tensor weight, Tensor hidden, bool reverse, str activation) -> (Tensor, Tensor)",
    lambda gates, weight, hidden, reverse, activation: _results(gates, weight, hidden),
    _rnn,
)


def _converter(operator: Any) -> Converter:
    def convert(importer: Importer, node: fx.Node) -> list[relax.Expr]:
        """All hidden states, and the last states."""
        tensors = [importer.env[arg] for arg in node.args if isinstance(arg, fx.Node)]
        names = [argument.name for argument in node.target._schema.arguments]
        attributes = {
            name: value for name, value in zip(names, node.args, strict=True) if not isinstance(value, fx.Node)
        }
        whole = importer.emit(operator(*tensors, **attributes))
        return [importer.emit(relax.TupleGetItem(whole, place)) for place in range(len(whole.ty.fields))]

    return convert


#: Converters by the name of the overload.
RECURRENT: dict[str, Converter] = {
    "autocast::lstm.default": _converter(own.lstm),
    "autocast::gru.default": _converter(own.gru),
    "autocast::rnn.default": _converter(own.rnn),
}
