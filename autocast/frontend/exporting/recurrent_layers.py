"""Recurrent layers of torch as recurrences over time, instead of step by step.

torch.export writes an LSTM, a GRU or a plain recurrent net out: every step becomes operators of its own, of a number
that is fixed then. While a module is exported inside of `whole_recurrences`, its layers are written in torch as
products, dropout, and one operator for each direction of a layer, those of packed sequences and of LSTMs with
projections too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode

from autocast.frontend.converters.recurrent import GRU, LSTM, RNN
from autocast.frontend.exporting.packed_sequences import Batch, PackedSequences


def _direction(
    name: str,
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    first: Sequence[torch.Tensor],
    reverse: bool,
    batch: Batch | None = None,
) -> Sequence[torch.Tensor]:
    """One direction of a layer: all hidden states, and the last states; of a `batch` the cells as sequences end."""
    (w_x, w_h), (b_x, b_h) = weights[:2], weights[2:4] if len(weights) > 3 else (None, None)
    projection = weights[-1] if len(weights) % 2 else None
    if name != "gru":
        gates = F.linear(x, w_x, None if b_x is None or b_h is None else b_x + b_h)
        if projection is not None:
            return _projected(gates, w_h, projection, first, reverse, batch)
        gates = batch.held(gates) if batch is not None and name == "lstm" else gates
        if name == "lstm":
            return LSTM(gates, w_h, *first, reverse)
        return RNN(gates, w_h, *first, reverse, name.removeprefix("rnn_"))
    if b_x is None or b_h is None:
        return GRU(F.linear(x, w_x), w_h, w_h.new_zeros(w_h.shape[1]), *first, reverse)
    units = w_h.shape[1]
    outside = b_x + F.pad(b_h[: 2 * units], (0, units))
    return GRU(F.linear(x, w_x, outside), w_h, b_h[2 * units :], *first, reverse)


def _projected(
    gates: torch.Tensor,
    w_h: torch.Tensor,
    projection: torch.Tensor,
    first: Sequence[torch.Tensor],
    reverse: bool,
    batch: Batch | None,
) -> Sequence[torch.Tensor]:
    """An LSTM that hands projected states on: one of states that are projected by its weight, and once more after it.

    The first state, of which nothing is the projection, is taken into the gates of the first step.
    """
    begin = F.linear(first[0], w_h)[None]
    gates = torch.cat([gates[:-1], gates[-1:] + begin] if reverse else [gates[:1] + begin, gates[1:]])
    gates = gates if batch is None else batch.held(gates)
    hiddens, last, *cells = LSTM(gates, w_h @ projection, torch.zeros_like(first[1]), first[1], reverse)
    return F.linear(hiddens, projection), F.linear(last, projection), *cells


def _packed_direction(
    name: str,
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    first: Sequence[torch.Tensor],
    reverse: bool,
    batch: Batch,
) -> Sequence[torch.Tensor]:
    """One direction of a layer, of sequences of several lengths: all run forward, as they end at different steps."""
    hiddens, _, *cells = _direction(name, batch.turned(x) if reverse else x, weights, first, False, batch)
    return batch.turned(hiddens) if reverse else hiddens, batch.last(hiddens), *cells


def _layers(
    name: str,
    x: torch.Tensor,
    first: Sequence[torch.Tensor],
    parameters: Sequence[torch.Tensor],
    _: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    direction: Callable[..., Sequence[torch.Tensor]] = _direction,
) -> tuple[torch.Tensor, ...]:
    """What `torch.lstm` and the like compute: the hidden states of the last layer, and the last states of all."""
    directions = 1 + bidirectional
    each = len(parameters) // (num_layers * directions)
    x = x.transpose(0, 1) if batch_first else x
    last: list[Sequence[torch.Tensor]] = []
    for layer in range(num_layers):
        sides = []
        for place in range(layer * directions, (layer + 1) * directions):
            weights, states = parameters[place * each : (place + 1) * each], [state[place] for state in first]
            hiddens, *ends = direction(name, x, weights, states, place % directions == 1)
            sides.append(hiddens)
            last.append(ends)
        x = torch.cat(sides, 2) if bidirectional else sides[0]
        if dropout and train and layer < num_layers - 1:
            x = F.dropout(x, dropout, True)
    return x.transpose(0, 1) if batch_first else x, *map(torch.stack, zip(*last, strict=True))


def _whole(name: str, x: torch.Tensor, first: Any, *options: Any) -> tuple[torch.Tensor, ...]:
    """A layer of a batch of one length."""
    return _layers(name, x, first if name == "lstm" else [first], *options)


_NAMES: Mapping[Any, str] = {getattr(torch, name): name for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}

#: How layers are split in programs that torch exported before.
WHOLE: Mapping[OpOverload, Callable[..., Any]] = {
    getattr(torch.ops.aten, name).input: partial(_whole, name) for name in _NAMES.values()
}


#: What calls concern recurrent layers before anything is packed.
_BEGINNING = frozenset((*_NAMES, torch._pack_padded_sequence))


class whole_recurrences(TorchFunctionMode):
    """While this is active, torch's recurrent layers are written with one operator for each direction of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences = PackedSequences()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        written = self._written(func, *args) if not kwargs and (self.sequences or func in _BEGINNING) else None
        return func(*args, **(kwargs or {})) if written is None else written

    def _written(self, func: Any, *args: Any) -> Any:
        """What a call returns; None where it is torch's."""
        if func is torch._pack_padded_sequence:
            return self.sequences.pack(*args)
        batch = next(filter(None, map(self.sequences.batch, args[:2])), None)
        name = _NAMES.get(func)
        if batch is None:
            if name is None or not _is_plain(name, *args):
                return None
            return _whole(name, *args)
        if func is torch._pad_packed_sequence:
            return self.sequences.pad(*args)
        if func is torch.Tensor.__getitem__ and isinstance(args[1], int) and args[1] == 0:  # no sequence is empty
            return batch.lengths.shape[0]
        return self._packed_layers(name, batch, args[0], *args[2:]) if name is not None else None

    def _packed_layers(
        self, name: str, batch: Batch, rows: torch.Tensor, first: Any, parameters: Sequence[torch.Tensor], *options: Any
    ) -> tuple[torch.Tensor, ...] | None:
        states, x = first if name == "lstm" else [first], self.sequences.padded(rows, batch)
        if not _is_plain(name, x, first, parameters, *options):
            return None
        others: list[Any] = [*options, False, partial(_packed_direction, batch=batch)]
        hiddens, *last = _layers(name, x, states, parameters, *others)
        return self.sequences.packed(hiddens, batch), *last


def _is_plain(name: str, x: Any, first: Any, parameters: Any, has_biases: Any = None, *others: Any) -> bool:
    """Whether a call is of a batch of one length (the second argument of packed ones is a tensor, then come states)."""
    if not isinstance(parameters, Sequence) or not isinstance(has_biases, bool) or x.dim() != 3:
        return False
    states = first if name == "lstm" else [first]
    return len(states) == (2 if name == "lstm" else 1) and states[0].shape[-1] == parameters[1].shape[1]
