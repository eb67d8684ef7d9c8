"""Recurrent layers of torch as recurrences over time, instead of step by step.

torch.export writes an LSTM, a GRU or a plain recurrent net out: every step becomes operators of its own, of a number
that is fixed then. While a module is exported inside of `whole_recurrences`, its layers are written in torch as
products, dropout, and one operator for each direction of a layer. What has projections, or packed sequences, is left
to torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from autocast.frontend.recurrent import GRU, LSTM, RNN


def _direction(
    name: str, x: torch.Tensor, weights: Sequence[torch.Tensor], first: Sequence[torch.Tensor], reverse: bool
) -> Sequence[torch.Tensor]:
    """One direction of a layer: all hidden states, and the last states."""
    (w_x, w_h), (b_x, b_h) = weights[:2], weights[2:] or (None, None)
    if name != "gru":
        gates = F.linear(x, w_x, None if b_x is None or b_h is None else b_x + b_h)
        if name == "lstm":
            return LSTM(gates, w_h, *first, reverse)
        return RNN(gates, w_h, *first, reverse, name.removeprefix("rnn_"))
    if b_x is None or b_h is None:
        return GRU(F.linear(x, w_x), w_h, w_h.new_zeros(w_h.shape[1]), *first, reverse)
    units = w_h.shape[1]
    outside = b_x + F.pad(b_h[: 2 * units], (0, units))
    return GRU(F.linear(x, w_x, outside), w_h, b_h[2 * units :], *first, reverse)


def _layers(
    name: str,
    x: torch.Tensor,
    first: Sequence[torch.Tensor],
    parameters: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """What `torch.lstm` and the like compute: the hidden states of the last layer, and the last states of all."""
    directions, each = 1 + bidirectional, 4 if has_biases else 2
    x = x.transpose(0, 1) if batch_first else x
    last: list[Sequence[torch.Tensor]] = []
    for layer in range(num_layers):
        sides = []
        for place in range(layer * directions, (layer + 1) * directions):
            weights, states = parameters[place * each : (place + 1) * each], [state[place] for state in first]
            hiddens, *ends = _direction(name, x, weights, states, place % directions == 1)
            sides.append(hiddens)
            last.append(ends)
        x = torch.cat(sides, 2) if bidirectional else sides[0]
        if dropout and train and layer < num_layers - 1:
            x = F.dropout(x, dropout, True)
    return x.transpose(0, 1) if batch_first else x, *map(torch.stack, zip(*last, strict=True))


_NAMES: Mapping[Any, str] = {getattr(torch, name): name for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}


class whole_recurrences(TorchFunctionMode):
    """While this is active, torch's recurrent layers are written with one operator for each direction of a layer."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _NAMES.get(func)
        if name is not None and not kwargs and _is_plain(name, *args):
            states = args[1] if name == "lstm" else [args[1]]
            return _layers(name, args[0], states, *args[2:])
        return func(*args, **(kwargs or {}))


def _is_plain(name: str, x: Any, first: Any, parameters: Any, has_biases: Any = None, *others: Any) -> bool:
    """Whether a call is of a batch of one length (the second argument of packed ones is a tensor, then come states),
    and its states are what cells compute, without projections."""
    if not isinstance(parameters, Sequence) or not isinstance(has_biases, bool) or x.dim() != 3:
        return False
    states = first if name == "lstm" else [first]
    return (
        all(state.shape[-1] == parameters[1].shape[1] for state in states)
        and len({state.shape[-1] for state in states}) == 1
    )
