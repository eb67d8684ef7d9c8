"""What hashes positions: the random bits of every other target, in 64-bit integers, which torch computes with."""

from __future__ import annotations

import math

import torch

from autocast.operators.own.dropout import LAST_SHIFT, ROUNDS, UNIFORM_SCALE, UNIFORM_SHIFT, random_bits
from autocast.operators.own.noise import SECOND
from autocast.operators.own.stochastic_round import DROPPED_BITS
from autocast.torch_target.asked import Asked, Row, Value

_MASK = 0xFFFFFFFF


def _scramble(a: Value, b: Value) -> Value:
    """lowbias32 of a ^ b."""
    x = a ^ b
    for shift, factor in ROUNDS:
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return x ^ (x >> LAST_SHIFT)


def _bits(asked: Asked, stream: int = 0) -> Value:
    """32 random bits for each element of the first argument, of the call's stream or of so many after it."""
    x, state = asked.args
    seed, step = (state[i].to(torch.int64) & _MASK for i in (0, 1))
    positions = torch.arange(x.numel()).reshape(asked.shape_of(0)) & _MASK
    return random_bits(_scramble, positions, seed, step, int(asked.attrs["stream"]) + stream, lambda number: number)


def _uniform_of(asked: Asked, stream: int = 0) -> Value:
    dtype = torch.float64 if asked.dtype is torch.float64 else torch.float32
    return (_bits(asked, stream) >> UNIFORM_SHIFT).to(dtype) * UNIFORM_SCALE


def _uniform(asked: Asked) -> Value:
    return asked.stored(_uniform_of(asked))


def _normal(asked: Asked) -> Value:
    length = torch.sqrt(torch.log(1 - _uniform_of(asked)) * -2.0)
    return asked.stored(length * torch.cos(_uniform_of(asked, SECOND) * (2 * math.pi)))


def _dropout(asked: Asked) -> Value:
    x, rate = asked.wide(0), float(asked.attrs["rate"])
    return asked.stored(torch.where(_uniform_of(asked) >= rate, x * (1.0 / (1.0 - rate)), 0.0))


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
    "nn.seeded_normal": _normal,
    "nn.seeded_uniform": _uniform,
    "multinomial_from_uniform": _multinomial,
    "nn.stochastic_round": _stochastic_round,
}
