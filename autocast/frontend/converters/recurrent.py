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

from autocast.frontend.converters.helpers import Converter
from autocast.frontend.importing.importer import Importer
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
    for projected in gates.to(begin.dtype).unbind()[:: -1 if reverse else 1]:
        states = step(projected, *states)
        rows.append(states[0].to(weight.dtype))
    rows = rows[::-1] if reverse else rows
    hiddens = torch.stack(rows) if rows else weight.new_empty((0, *begin.shape))
    return hiddens, *(state.clone() for state in states)


#: Matrices of up to so many numbers stay in a cache near a core, however they lie.
_SMALL = 2**17


class Factor:
    """What the states of all steps are multiplied by: they are rounded to what it is stored in; it is widened once."""

    def __init__(self, matrix: torch.Tensor, wide: torch.dtype) -> None:
        self._stored, self._matrix = matrix.dtype, matrix.to(wide)
        self._packed: torch.Tensor | None = None
        is_of_library = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
        if is_of_library and wide is torch.float32 and matrix.device.type == "cpu" and matrix.numel() > _SMALL:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self._matrix.t().contiguous())

    def __call__(self, state: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """The product, whose operands are rounded, and added as states are, and added to another of its shape."""
        rounded = state.to(self._stored).to(self._matrix.dtype)
        if self._packed is None or not state.numel():
            product = rounded @ self._matrix
            return product if other is None else product + other
        if other is None:
            return torch.ops.mkldnn._linear_pointwise.default(rounded, self._packed, None, "none", [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(rounded, other, self._packed, None, "add")


def _lstm(
    product: Factor, gates: torch.Tensor, weight: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, reverse: bool
) -> tuple[torch.Tensor, ...]:
    def step(x: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sums = product(hidden, x)
        g = sums.chunk(4, 1)[2].tanh()
        i, f, _, o = sums.sigmoid_().chunk(4, 1)
        cell = torch.addcmul(f * cell, i, g)
        return o * cell.tanh(), cell

    return _run(gates, weight, (hidden, cell), step, reverse)


def _gru(
    product: Factor, gates: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, hidden: torch.Tensor, reverse: bool
) -> tuple[torch.Tensor, ...]:
    units = hidden.shape[1]
    bias = bias.to(hidden.dtype)

    def step(x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (both, x_n), (products, n) = (sums.split([2 * units, units], 1) for sums in (x, product(hidden)))
        r, z = (both + products).sigmoid_().chunk(2, 1)
        new = torch.addcmul(x_n, r, n + bias).tanh_()
        return (torch.lerp(new, hidden, z),)

    return _run(gates, weight, (hidden,), step, reverse)


def _rnn(
    product: Factor, gates: torch.Tensor, weight: torch.Tensor, hidden: torch.Tensor, reverse: bool, activation: str
) -> tuple[torch.Tensor, ...]:
    def step(x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (_ACTIVATIONS[activation](product(hidden, x)),)

    return _run(gates, weight, (hidden,), step, reverse)


class Recurrence:
    """Computes an operator of these, whose weight is packed in the first call, and the same in all calls.

    Parameters
    ----------
    run
        From the product with the weight and the operator's arguments to its results.
    """

    def __init__(self, run: Callable[..., tuple[torch.Tensor, ...]]) -> None:
        self._run = run
        self._product: Factor | None = None

    def __call__(self, gates: torch.Tensor, weight: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
        """The hidden states of all steps, and the last states."""
        if self._product is None:
            *_, state = (other for other in others if isinstance(other, torch.Tensor))
            self._product = Factor(weight.t(), state.dtype)
        return self._run(self._product, gates, weight, *others)


def _define(schema: str, run: Callable[..., tuple[torch.Tensor, ...]], states: slice) -> torch._ops.OpOverload:
    """An operator for the weight of each call; `states` are the first ones, among its arguments."""
    operator = define(
        schema,
        lambda gates, weight, *others: _results(gates, weight, *others[states]),
        lambda *arguments: Recurrence(run)(*arguments),
    )
    RUNS[operator] = run
    return operator


#: What computes the operators, by them: `Recurrence` takes it.
RUNS: dict[torch._ops.OpOverload, Callable[..., tuple[torch.Tensor, ...]]] = {}

LSTM = _define(
    "lstm(Tensor gates, Tensor weight, Tensor hidden, Tensor cell, bool reverse) -> (Tensor, Tensor, Tensor)",
    _lstm,
    slice(0, 2),
)
GRU = _define(
    "gru(Tensor gates, Tensor weight, Tensor bias, Tensor hidden, bool reverse) -> (Tensor, Tensor)", _gru, slice(1, 2)
)
RNN = _define(
    "rnn(Tensor gates, Tensor weight, Tensor hidden, bool reverse, str activation) -> (Tensor, Tensor)",
    _rnn,
    slice(0, 1),
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
