"""Random numbers that are a function of where they are used, as `seeded_dropout` says: computed, and never stored."""

from __future__ import annotations

import math

from tvm import relax

from autocast.ir.views import dtype_of
from autocast.operators.operator import Expansion, define, like
from autocast.operators.own.dropout import UNIFORM_SCALE, UNIFORM_SHIFT, expand_bits, word

op = relax.op

#: What tells the second number of an element apart from its first: the highest bit of the call's stream.
SECOND = 1 << 31


def _uniform(e: Expansion, stream: int) -> relax.Expr:
    x, state = e.operands
    bits = expand_bits(e, x, state, stream)
    return op.astype(op.right_shift(bits, word(UNIFORM_SHIFT)), dtype_of(x)) * e.number(UNIFORM_SCALE)


def _expand_uniform(e: Expansion) -> relax.Expr:
    return _uniform(e, int(e.call.attrs["stream"]))


def _expand_normal(e: Expansion) -> relax.Expr:
    """Of two uniform numbers: the length of a vector of two normal numbers, times the cosine of its angle.

    Source: Box and Muller, "A note on the generation of random normal deviates", 1958.
    """
    stream = int(e.call.attrs["stream"])
    length, angle = _uniform(e, stream), _uniform(e, stream + SECOND)
    length = op.sqrt(op.log(e.number(1.0) - length) * e.number(-2.0))
    return length * op.cos(angle * e.number(2 * math.pi))


#: `seeded_uniform(x, state, stream=3)`: of `x` only the shape and the dtype matter; `state` is (seed, steps taken) in
#: int32, and `stream` a number below 2^31 that tells the calls of a module apart.
seeded_uniform = define(
    "relax.nn.seeded_uniform",
    "x state",
    result=like(0),
    expand=_expand_uniform,
    summary="for each element of x a random multiple of 2^-24 from 0 to below 1",
)

#: `seeded_normal(x, state, stream=3)`: the arguments as of `seeded_uniform`.
seeded_normal = define(
    "relax.nn.seeded_normal",
    "x state",
    result=like(0),
    expand=_expand_normal,
    summary="for each element of x a random number of the standard normal distribution",
)
