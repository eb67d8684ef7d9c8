"""Recurrences over time: operators of ours that torch runs step by step."""

from __future__ import annotations

from typing import Any

import torch

from autocast.errors import UnsupportedError
from autocast.frontend.converters.recurrent import GRU, LSTM, RNN, Factor, define
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
    """What does not depend on the adjoints is computed for all steps at once."""
    product = Factor(weight, g_hidden.dtype)
    c = sums.chunk(4, 2)[2].tanh()
    i, f, _, o = sums.sigmoid().chunk(4, 2)
    times = _times(sums, reverse)
    before, after = torch.empty_like(c), torch.empty_like(c)
    added = i * c
    for time in times:
        before[time] = cell
        cell = torch.addcmul(added[time], f[time], cell, out=after[time])
    after.tanh_()
    of_cell = o * (1 - after**2)
    of_step = torch.cat([c * i * (1 - i), before * f * (1 - f), i * (1 - c**2), after * o * (1 - o)], 2)
    of_sums = torch.empty_like(sums, dtype=weight.dtype)
    for time in reversed(times):
        g_hidden = g_hidden + g[time]
        g_cell = torch.addcmul(g_cell, g_hidden, of_cell[time])
        of_time = torch.cat([g_cell, g_cell, g_cell, g_hidden], 1).mul_(of_step[time])
        of_sums[time] = of_time
        g_hidden, g_cell = product(of_time), g_cell * f[time]
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
    units = g_hidden.shape[1]
    both, x, n = sums.split([2 * units, units, units], 2)
    r, z = both.sigmoid().chunk(2, 2)
    new = torch.addcmul(x, r, n).tanh_()
    of_new = (1 - z) * (1 - new**2)
    of_step = torch.cat([of_new * n * r * (1 - r), (previous - new) * z * (1 - z), of_new * r], 2)
    of_hidden = torch.empty_like(new)
    for time in reversed(_times(sums, reverse)):
        g_hidden = torch.add(g_hidden, g[time], out=of_hidden[time])
        of_products = g_hidden.repeat(1, 3).mul_(of_step[time])
        g_hidden = torch.addcmul(product(of_products), g_hidden, z[time])
    of_step *= of_hidden.repeat(1, 1, 3)
    of_sums = torch.cat([of_step[..., : 2 * units], of_hidden * of_new, of_step[..., 2 * units :]], 2)
    return of_sums.to(weight.dtype), g_hidden.clone()


def _run_rnn_backward(
    hiddens: torch.Tensor, weight: torch.Tensor, g: torch.Tensor, g_hidden: torch.Tensor, reverse: bool, activation: str
) -> tuple[torch.Tensor, ...]:
    product = Factor(weight, g_hidden.dtype)
    of_sums = torch.empty_like(hiddens, dtype=weight.dtype)
    for time in reversed(_times(hiddens, reverse)):
        hidden = hiddens[time].to(g.dtype)
        g_hidden = g_hidden + g[time]
        of_sum = g_hidden * (1 - hidden**2) if activation == "tanh" else torch.where(hidden <= 0, 0.0, g_hidden)
        of_sums[time] = of_sum
        g_hidden = product(of_sum)
    return of_sums, g_hidden.clone()


def _times(steps: torch.Tensor, reverse: bool) -> list[int]:
    """The steps in the order in which the forward operator took them."""
    return list(range(len(steps)))[:: -1 if reverse else 1]


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
    _operator._dispatch_cache.clear()  # torch keeps that an import that was made before found no gradient
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
