"""What a cast costs, and what a flexible operator moves in each precision: the weights of the cut problem.

`objective="casts"` counts every cast as 1. `objective="bytes"` counts the bytes that a cast reads and writes; among
choices whose casts move equally many, it takes the one whose flexible operators move the fewest. The order matters:
traffic is never traded for a cast, because that would round float32 tensors (a residual stream, say) which no
low-precision operator asks for, and most of that traffic stays in registers anyway, where neighbours are fused.
"""

from __future__ import annotations

from typing import Literal

Objective = Literal["bytes", "casts"]
OBJECTIVES: tuple[str, ...] = ("bytes", "casts")

_WIDE, _NARROW = 4, 2

#: These only rename their operand's elements, and move no byte in either precision.
MOVES_NOTHING = frozenset(f"relax.{name}" for name in ("reshape", "expand_dims", "squeeze", "flatten"))


def cast_bytes(elements: int) -> int:
    """Bytes that a cast between float32 and a 16-bit dtype reads and writes."""
    return elements * (_WIDE + _NARROW)


def cast_weight(objective: Objective, elements: int) -> int:
    """The weight of one cast of a tensor of `elements` elements."""
    return 1 if objective == "casts" else cast_bytes(elements)


def traffic_weight(objective: Objective, op_name: str, elements: int) -> int:
    """How many bytes more a flexible operator over `elements` elements in all moves in float32 than in 16 bits."""
    return 0 if objective == "casts" or op_name in MOVES_NOTHING else elements * (_WIDE - _NARROW)
