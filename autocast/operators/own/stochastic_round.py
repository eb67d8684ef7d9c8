"""Stochastic rounding: float32 to one of the two bfloat16 numbers around it, so that the mean is the number itself.

    1 + 2^-10  becomes  1 in seven of eight places, and 1 + 2^-7 in one

Rounding to the nearest loses what is less than half a unit in the last place, however often it is added; this loses
nothing on the average. The upper half of a float32 is the bfloat16 below it in size: 16 random bits are added to the
lower half, which carry into the upper one as often as they should, and the lower half is dropped. The bits are those of
`seeded_dropout`: a function of the place and of how many steps were taken.

Source: Gupta et al., "Deep learning with limited numerical precision", 2015 (training with stochastic rounding); Croci
et al., "Stochastic rounding: implementation, error analysis and applications", 2022.
"""

from __future__ import annotations

import tvm
from tvm import relax

from autocast.operators.operator import Expansion, define
from autocast.operators.own.dropout import expand_bits

op = relax.op

#: Bits of a float32 that a bfloat16 has not.
DROPPED_BITS = 16


def _result(call: relax.Call) -> tvm.ir.Type:
    return relax.TensorType(call.args[0].ty.shape, "bfloat16")


def _expand(e: Expansion) -> relax.Expr:
    x, state = e.operands
    dropped = relax.const(DROPPED_BITS, "uint32")
    noise = e.emit(op.right_shift(expand_bits(e, x, state, int(e.call.attrs["stream"])), dropped))
    bits = e.emit(op.add(e.emit(op.memory.view(x, dtype="uint32")), noise))
    bits = e.emit(op.left_shift(e.emit(op.right_shift(bits, dropped)), dropped))
    rounded = e.emit(op.memory.view(bits, dtype="float32"))
    return op.astype(op.where(op.equal(x, x), rounded, x), "bfloat16")  # not where x is NaN


#: `stochastic_round(x, state, stream=3)`: `x` in float32; `state` is (seed, steps taken) in int32, and `stream` a
#: number that tells the calls of a module apart. What bfloat16 holds stays as it is: infinities, NaN and zeros, too.
stochastic_round = define(
    "relax.nn.stochastic_round",
    "x state",
    result=_result,
    expand=_expand,
    summary="x in bfloat16, up or down as random numbers of state, stream and position say: right in the mean",
)
