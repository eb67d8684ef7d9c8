"""What a cast costs, and what a flexible operator costs in each precision: the weights of the cut problem.

`objective="casts"` counts every cast as 1. `objective="bytes"` counts the bytes that a cast reads and writes. An
operator that may run in either precision reads and writes less in the lower one. Most of that traffic never reaches
memory, because neighbours are fused, so it counts a sixteenth: enough to decide between equal numbers of bytes cast,
not enough to round a float32 tensor (a residual stream, say) that no low-precision operator asks for. Weights are
integers, in sixteenths of a byte.
"""

from __future__ import annotations

from typing import Literal

Objective = Literal["bytes", "casts"]
OBJECTIVES: tuple[str, ...] = ("bytes", "casts")

#: Weights of the `bytes` objective are integers in this fraction of a byte.
UNITS_PER_BYTE = 16
_WIDE, _NARROW = 4, 2

#: These only rename their operand's elements, and move no byte in either precision.
MOVES_NOTHING = frozenset(f"relax.{name}" for name in ("reshape", "expand_dims", "squeeze", "flatten"))


def cast_bytes(elements: int) -> int:
    """Bytes that a cast between float32 and a 16-bit dtype reads and writes."""
    return elements * (_WIDE + _NARROW)


def cast_weight(objective: Objective, elements: int) -> int:
    """The weight of one cast of a tensor of `elements` elements."""
    return 1 if objective == "casts" else UNITS_PER_BYTE * cast_bytes(elements)


def traffic_weight(objective: Objective, op_name: str, elements: int) -> int:
    """What a flexible operator that moves `elements` elements in all costs more in float32 than in 16 bits."""
    return 0 if objective == "casts" or op_name in MOVES_NOTHING else elements * (_WIDE - _NARROW)
