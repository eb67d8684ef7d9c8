"""Recurrent layers in torch, as the operators of Relax have them."""

from __future__ import annotations

from collections.abc import Callable

import torch


def layer(name: str, reverse: bool) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A recurrent layer of torch, whose products with its inputs are those with the identity."""

    def run(gates: torch.Tensor, weight: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *bias, first = (others[:-2], others[-2:]) if name == "lstm" else (others[:-1], others[-1:])
        states = [state[None] for state in first]
        weights = [torch.eye(gates.shape[2], dtype=gates.dtype), weight]
        if bias[0]:
            zeros = torch.zeros(gates.shape[2], dtype=gates.dtype)
            weights += [zeros, torch.cat([zeros[: 2 * weight.shape[1]], *bias[0]])]
        x = gates.flip(0) if reverse else gates
        start = tuple(states) if name == "lstm" else states[0]
        hiddens, *last = getattr(torch, name)(x, start, weights, bool(bias[0]), 1, 0.0, False, False, False)
        return hiddens.flip(0) if reverse else hiddens, *(state[0] for state in last)

    return run


def back_through_time(name: str, reverse: bool) -> Callable[..., tuple[torch.Tensor, ...]]:
    """What torch says of the adjoints, where each step's sums are given and change with the states before only."""

    def adjoints(sums: torch.Tensor, weight: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count = 2 if name == "lstm" else 1
        g, results = others[-1 - count], others[-count:]
        changes = torch.zeros_like(sums).requires_grad_()
        first = [torch.zeros_like(results[0]).requires_grad_()]
        if name == "lstm":
            first.append(others[0].clone().requires_grad_())
        hidden, cell = first[0], first[-1]
        size, total = weight.shape[1], torch.zeros(())
        for time in range(len(sums))[:: -1 if reverse else 1]:
            moved = (hidden - hidden.detach()) @ weight.t()
            if name == "lstm":
                i, f, c, o = (sums[time] + changes[time] + moved).chunk(4, 1)
                cell = f.sigmoid() * cell + i.sigmoid() * c.tanh()
                hidden = o.sigmoid() * cell.tanh()
            elif name == "gru":
                before = others[0][time] + hidden - hidden.detach()
                moved = torch.cat([moved[:, : 2 * size], torch.zeros_like(hidden), moved[:, 2 * size :]], 1)
                r, z, x, n = (sums[time] + changes[time] + moved).chunk(4, 1)
                new = (x + r.sigmoid() * n).tanh()
                hidden = new + z.sigmoid() * (before - new)
            else:
                hidden = (sums[time] + changes[time] + moved).tanh()
            total = total + (hidden * g[time]).sum()
        ends = [hidden, cell] if name == "lstm" else [hidden]
        total = total + sum((end * of_end).sum() for end, of_end in zip(ends, results, strict=True))
        return torch.autograd.grad(total, [changes, *first])

    return adjoints
