"""Dropout whose random numbers are a function of where they are used, so that they are computed and never stored.

Each element hashes its position with a key of the state (a seed, and how many steps were taken) and of the call's
stream. Whoever asks again gets the same answer: the backward pass, a recomputed layer, any number of threads, any
target. It is a linear function of `x`, so its gradient is the same call on the adjoint.

The hash keys a permutation of 32 bits twice, as Even and Mansour do with a cipher; the permutation is lowbias32.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011 (random numbers by counting); Even and
Mansour, "A construction of a cipher from a single pseudorandom permutation", 1997; Wellons, "Prospecting for hash
functions", 2018 (lowbias32).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, tirx

from autocast.ir.views import dtype_of
from autocast.operators.operator import Expansion, define, like

op = relax.op

#: lowbias32: to `x ^ (x >> shift)`, multiplied by a factor, twice; then `x ^ (x >> 16)`.
ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B))
LAST_SHIFT = 16

#: Bits without a pattern: the golden ratio's.
_GOLDEN = 0x9E3779B9

#: Of 32 random bits, those that become a number: float32 holds all multiples of 2^-24 below 1.
UNIFORM_SHIFT, UNIFORM_SCALE = 8, 2.0**-24


def random_bits(
    scramble: Callable[[Any, Any], Any], position: Any, seed: Any, step: Any, stream: Any, word: Any
) -> Any:
    """32 random bits for each position, in whatever kind of integers `scramble` takes.

    `scramble(a, b)` is lowbias32 of `a ^ b`, and `word` makes such an integer of a number.
    """
    key = scramble(scramble(scramble(seed, word(_GOLDEN)), step), stream)
    return scramble(scramble(position, key), scramble(key, word(_GOLDEN)))


def word(value: int) -> relax.Expr:
    """A number of 32 bits."""
    return relax.const(value, "uint32")


def expand_bits(e: Expansion, x: relax.Expr, state: relax.Expr, stream: int) -> relax.Expr:
    """The random bits of each element of `x`, in uint32: of its position, `state`, and `stream`."""

    def scramble(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        x = e.emit(op.bitwise_xor(a, b))
        for shift, factor in ROUNDS:
            x = e.emit(op.bitwise_xor(x, op.right_shift(x, word(shift))))
            x = e.emit(op.multiply(x, word(factor)))
        return e.emit(op.bitwise_xor(x, op.right_shift(x, word(LAST_SHIFT))))

    seed, step = (
        e.emit(op.astype(op.take(state, relax.const(i, "int64"), axis=0, mode="clip"), "uint32")) for i in (0, 1)
    )
    size = tirx.const(1, "int64")
    for dim in x.ty.shape.values:
        size = size * dim
    position = e.emit(op.reshape(op.arange(relax.prim_value(size), dtype="int64"), x.ty.shape))
    position = e.emit(op.astype(position, "uint32"))
    return random_bits(scramble, position, seed, step, word(stream), word)


def _expand(e: Expansion) -> relax.Expr:
    x, state = e.operands
    bits = expand_bits(e, x, state, int(e.call.attrs["stream"]))
    rate, dtype = float(e.call.attrs["rate"]), dtype_of(x)
    uniform = op.astype(op.right_shift(bits, word(UNIFORM_SHIFT)), dtype) * relax.const(UNIFORM_SCALE, dtype)
    kept = op.greater_equal(uniform, relax.const(rate, dtype))
    return op.where(kept, x * relax.const(1.0 / (1.0 - rate), dtype), relax.const(0.0, dtype))


#: `seeded_dropout(x, state, rate=0.1, stream=3)`: `state` is (seed, steps taken) in int32, and `stream` a number that
#: tells the calls of a module apart.
seeded_dropout = define(
    "relax.nn.seeded_dropout",
    "x state",
    result=like(0),
    expand=_expand,
    summary="x / (1 - rate) where a random number of state, stream and position is at least rate, else 0",
)
