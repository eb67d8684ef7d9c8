"""What hashes positions: the random bits of every other target, in 64-bit integers, which torch computes with."""

from __future__ import annotations

import torch

from autocast.operators.own.dropout import LAST_SHIFT, ROUNDS, UNIFORM_SCALE, UNIFORM_SHIFT, random_bits
from autocast.operators.own.stochastic_round import DROPPED_BITS
from autocast.torch_target.asked import Asked, Row, Value

_MASK = 0xFFFFFFFF


def _scramble(a: Value, b: Value) -> Value:
    """lowbias32 of a ^ b."""
    x = a ^ b
    for shift, factor in ROUNDS:
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return x ^ (x >> LAST_SHIFT)


def _bits(asked: Asked) -> Value:
    """32 random bits for each element of the first argument."""
    x, state = asked.args
    seed, step = (state[i].to(torch.int64) & _MASK for i in (0, 1))
    positions = torch.arange(x.numel()).reshape(asked.shape_of(0)) & _MASK
    return random_bits(_scramble, positions, seed, step, int(asked.attrs["stream"]), lambda number: number)


def _dropout(asked: Asked) -> Value:
    x, rate = asked.wide(0), float(asked.attrs["rate"])
    uniform = (_bits(asked) >> UNIFORM_SHIFT).to(torch.float32) * UNIFORM_SCALE
    return asked.stored(torch.where(uniform >= rate, x * (1.0 / (1.0 - rate)), 0.0))


def _stochastic_round(asked: Asked) -> Value:
    x = asked.args[0]
    bits = (x.view(torch.int32).to(torch.int64) & _MASK) + (_bits(asked) >> DROPPED_BITS)
    rounded = ((bits >> DROPPED_BITS) << DROPPED_BITS).to(torch.int32).view(torch.float32)
    return torch.where(torch.isnan(x), x, rounded).to(torch.bfloat16)


def _multinomial(asked: Asked) -> Value:
    """For each sample, the first index where the sums of its row's probabilities are beyond its number."""
    chances, uniform, rows = asked.args
    sums = torch.cumsum(chances, 1)[rows.reshape(-1).to(torch.int64)]
    found = torch.searchsorted(sums, uniform.reshape((-1, 1)).to(sums.dtype), right=True)
    return torch.clamp(found, max=asked.shape_of(0)[1] - 1).to(asked.dtype)


ROWS: dict[str, Row] = {
    "nn.seeded_dropout": _dropout,
    "multinomial_from_uniform": _multinomial,
    "nn.stochastic_round": _stochastic_round,
}
