"""Random numbers: functions of the bits of float32 vectors, which are moved and never computed with as numbers."""

from __future__ import annotations

from autocast.kernels.targets.cpu.vector.function_body import Body, Definition, Value
from autocast.operators.own.dropout import LAST_SHIFT, ROUNDS, UNIFORM_SCALE, UNIFORM_SHIFT
from autocast.operators.own.stochastic_round import DROPPED_BITS


def _scramble(b: Body, x: Value, y: Value) -> Value:
    """32 bits that depend on all bits of `x ^ y`."""
    bits = b.int_op("xor", b.bits(x), b.bits(y))
    for shift, factor in ROUNDS:
        bits = b.int_op("xor", bits, b.int_op("lshr", bits, shift))
        bits = b.int_op("mul", bits, factor - (factor >> 31 << 32))
    return b.from_bits(b.int_op("xor", bits, b.int_op("lshr", bits, LAST_SHIFT)))


def _uniform(b: Body, bits: Value) -> Value:
    """The bits as a number from 0 to below 1."""
    return b.to_float(b.int_op("lshr", b.bits(bits), UNIFORM_SHIFT)) * UNIFORM_SCALE


def _dropout(b: Body, x: Value, bits: Value, rate: Value, scale: Value) -> Value:
    """`x * scale` where the bits, as a number from 0 to 1, are at least `rate`; else 0."""
    return b.where("olt", _uniform(b, bits), rate, 0.0, x * scale)


def _stochastic_round(b: Body, x: Value, bits: Value) -> Value:
    """The bfloat16 above or below `x`, as float32: its upper half, after some bits were added to the lower one."""
    noisy = b.int_op("add", b.bits(x), b.int_op("lshr", b.bits(bits), DROPPED_BITS))
    return b.where("uno", x, x, x, b.from_bits(b.int_op("and", noisy, -1 << DROPPED_BITS)))


FUNCTIONS: dict[str, Definition] = {
    "scramble": _scramble,
    "uniform": _uniform,
    "dropout": _dropout,
    "stochastic_round": _stochastic_round,
}
