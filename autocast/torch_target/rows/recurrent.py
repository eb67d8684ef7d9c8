"""Recurrences over time: operators of ours that torch runs step by step."""

from __future__ import annotations

from typing import Any

import torch

from autocast.errors import UnsupportedError
from autocast.frontend.recurrent import GRU, LSTM, RNN, Factor, define
from autocast.torch_target.asked import Asked, Row, Value


def _run_lstm_backward(
    sums: torch.Tensor,
    weight: torch.Tensor,
    cell: torch.Tensor,
    g: torch.Tensor,
    g_hidden: torch.Tensor,
    g_cell: torch.Tensor,
    reverse: bool,
) -> tuple[torch.Tensor, ...]:
    product = Factor(weight, g_hidden.dtype)
    of_sums, cells = sums.new_empty(sums.shape).to(weight.dtype), []
    times = list(range(len(sums)))[:: -1 if reverse else 1]
    for time in times:
        i, f, c, _ = sums[time].chunk(4, 1)
        cells.append(cell)
        cell = f.sigmoid() * cell + i.sigmoid() * c.tanh()
    for time, before, after in zip(times[::-1], cells[::-1], [*cells[1:], cell][::-1], strict=True):
        i, f, o = (sums[time].chunk(4, 1)[gate].sigmoid() for gate in (0, 1, 3))
        c, squashed = sums[time].chunk(4, 1)[2].tanh(), after.tanh()
        g_hidden = g_hidden + g[time]
        g_cell = g_cell + g_hidden * o * (1 - squashed**2)
        of_input, of_forget = g_cell * c * i * (1 - i), g_cell * before * f * (1 - f)
        of_step = [of_input, of_forget, g_cell * i * (1 - c**2), g_hidden * squashed * o * (1 - o)]
        of_sums[time] = torch.cat(of_step, 1)
        g_hidden, g_cell = product(torch.cat(of_step, 1)), g_cell * f
    return of_sums, g_hidden.clone(), g_cell.clone()


def _run_gru_backward(
    sums: torch.Tensor,
    weight: torch.Tensor,
    previous: torch.Tensor,
    g: torch.Tensor,
    g_hidden: torch.Tensor,
    reverse: bool,
) -> tuple[torch.Tensor, ...]:
    product = Factor(weight, g_hidden.dtype)
    of_sums = sums.new_empty(sums.shape).to(weight.dtype)
    for time in range(len(sums)) if reverse else reversed(range(len(sums))):
        r, z, x, n = sums[time].chunk(4, 1)
        r, z = r.sigmoid(), z.sigmoid()
        new = (x + r * n).tanh()
        g_hidden = g_hidden + g[time]
        of_new = g_hidden * (1 - z) * (1 - new**2)
        of_reset, of_update = of_new * n * r * (1 - r), g_hidden * (previous[time] - new) * z * (1 - z)
        of_sums[time] = torch.cat([of_reset, of_update, of_new, of_new * r], 1)
        g_hidden = g_hidden * z + product(torch.cat([of_reset, of_update, of_new * r], 1))
    return of_sums, g_hidden.clone()


def _run_rnn_backward(
    hiddens: torch.Tensor, weight: torch.Tensor, g: torch.Tensor, g_hidden: torch.Tensor, reverse: bool, activation: str
) -> tuple[torch.Tensor, ...]:
    product = Factor(weight, g_hidden.dtype)
    of_sums = hiddens.new_empty(hiddens.shape).to(weight.dtype)
    for time in range(len(hiddens)) if reverse else reversed(range(len(hiddens))):
        hidden = hiddens[time].to(g.dtype)
        g_hidden = g_hidden + g[time]
        of_sum = g_hidden * (1 - hidden**2) if activation == "tanh" else torch.where(hidden <= 0, 0.0, g_hidden)
        of_sums[time] = of_sum
        g_hidden = product(of_sum)
    return of_sums, g_hidden.clone()


LSTM_BACKWARD = define(
    "lstm_backward(Tensor sums, Tensor weight, Tensor cell, Tensor g, Tensor g_hidden, Tensor g_cell, bool reverse)"
    " -> (Tensor, Tensor, Tensor)",
    lambda sums, weight, cell, g, g_hidden, g_cell, reverse: (
        weight.new_empty(sums.shape),
        torch.empty_like(g_hidden),
        torch.empty_like(g_cell),
    ),
    _run_lstm_backward,
)
GRU_BACKWARD = define(
    "gru_backward(Tensor sums, Tensor weight, Tensor previous, Tensor g, Tensor g_hidden, bool reverse)"
    " -> (Tensor, Tensor)",
    lambda sums, weight, previous, g, g_hidden, reverse: (weight.new_empty(sums.shape), torch.empty_like(g_hidden)),
    _run_gru_backward,
)
RNN_BACKWARD = define(
    "rnn_backward(Tensor hiddens, Tensor weight, Tensor g, Tensor g_hidden, bool reverse, str activation)"
    " -> (Tensor, Tensor)",
    lambda hiddens, weight, g, g_hidden, reverse, activation: (
        weight.new_empty(hiddens.shape),
        torch.empty_like(g_hidden),
    ),
    _run_rnn_backward,
)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    """Keep the tensors and the hidden states of all steps; the rest are attributes."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    ctx.attributes = inputs[len(tensors) :]
    ctx.save_for_backward(*tensors, output[0])


def _previous(hiddens: torch.Tensor, first: torch.Tensor, reverse: bool) -> torch.Tensor:
    """The hidden state that each step began with, as it was multiplied: in the dtype of the weight."""
    begin = first.to(hiddens.dtype).unsqueeze(0)
    return torch.cat([hiddens[1:], begin] if reverse else [begin, hiddens[:-1]])


def _of_weight(of_products: torch.Tensor, previous: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """One product that sums over all steps and the batch."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    return (of_products.flatten(0, 1).t().to(wide) @ previous.flatten(0, 1).to(wide)).to(weight.dtype)


def _lstm_adjoints(ctx: Any, g: torch.Tensor, g_hidden: torch.Tensor, g_cell: torch.Tensor) -> tuple[Any, ...]:
    gates, weight, hidden, cell, hiddens = ctx.saved_tensors
    (reverse,) = ctx.attributes
    previous = _previous(hiddens, hidden, reverse)
    sums = gates.to(cell.dtype) + Factor(weight.t(), cell.dtype)(previous)
    of_sums, of_hidden, of_cell = LSTM_BACKWARD(sums, weight, cell, g, g_hidden, g_cell, reverse)
    return of_sums.to(gates.dtype), _of_weight(of_sums, previous, weight), of_hidden, of_cell, None


def _gru_adjoints(ctx: Any, g: torch.Tensor, g_hidden: torch.Tensor) -> tuple[Any, ...]:
    gates, weight, bias, hidden, hiddens = ctx.saved_tensors
    (reverse,) = ctx.attributes
    previous = _previous(hiddens, hidden, reverse)
    wide, units = hidden.dtype, hidden.shape[-1]
    products = Factor(weight.t(), wide)(previous)
    of_gates = gates.to(wide)
    both = of_gates[..., : 2 * units] + products[..., : 2 * units]
    sums = torch.cat([both, of_gates[..., 2 * units :], products[..., 2 * units :] + bias.to(wide)], 2)
    of_sums, of_hidden = GRU_BACKWARD(sums, weight, previous, g, g_hidden, reverse)
    of_recurrent = of_sums[..., 3 * units :]
    of_weight = _of_weight(torch.cat([of_sums[..., : 2 * units], of_recurrent], 2), previous, weight)
    of_bias = of_recurrent.sum((0, 1), dtype=wide).to(bias.dtype)
    return of_sums[..., : 3 * units].to(gates.dtype), of_weight, of_bias, of_hidden, None


def _rnn_adjoints(ctx: Any, g: torch.Tensor, g_hidden: torch.Tensor) -> tuple[Any, ...]:
    gates, weight, hidden, hiddens = ctx.saved_tensors
    reverse, activation = ctx.attributes
    of_sums, of_hidden = RNN_BACKWARD(hiddens, weight, g, g_hidden, reverse, activation)
    of_weight = _of_weight(of_sums, _previous(hiddens, hidden, reverse), weight)
    return of_sums.to(gates.dtype), of_weight, of_hidden, None, None


def _refuse(ctx: Any, *adjoints: Any) -> Any:
    raise UnsupportedError(
        "to_torch: gradients of gradients of an LSTM, GRU or RNN were asked for, expected gradients alone. "
        "Differentiate the module that the model was imported from"
    )


for _operator, _adjoints in ((LSTM, _lstm_adjoints), (GRU, _gru_adjoints), (RNN, _rnn_adjoints)):
    torch.library.register_autograd(_operator._schema.name, _adjoints, setup_context=_keep)
for _operator in (LSTM_BACKWARD, GRU_BACKWARD, RNN_BACKWARD):
    torch.library.register_autograd(_operator._schema.name, _refuse)


def _row(operator: torch._ops.OpOverload) -> Row:
    """A call with the attributes as arguments, under their names."""
    names = [argument.name for argument in operator._schema.arguments]

    def row(asked: Asked) -> Value:
        convert = {"reverse": bool, "activation": str}
        return operator(*asked.args, *(convert[name](getattr(asked.attrs, name)) for name in names[len(asked.args) :]))

    return row


ROWS: dict[str, Row] = {
    "nn.lstm": _row(LSTM),
    "nn.gru": _row(GRU),
    "nn.rnn": _row(RNN),
    "grad.lstm_backward": _row(LSTM_BACKWARD),
    "grad.gru_backward": _row(GRU_BACKWARD),
    "grad.rnn_backward": _row(RNN_BACKWARD),
}
