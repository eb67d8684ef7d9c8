"""What a cast costs, and what a flexible operator moves in each precision: the weights of the cut problem.

`objective="casts"` counts every cast as 1. `objective="bytes"` asks a `CostModel` what becomes of a cast: a tensor read
and another written where it is a kernel of its own, next to nothing where the kernel before it narrows what it stores,
or every kernel after it converts what it loads. Not nothing: such a cast still rounds, or keeps a tensor wide.
Among choices whose casts cost the same, the one is taken whose flexible operators move the fewest bytes. The order
matters: traffic is never traded for a cast, because that would round float32 tensors (a residual stream, say) which no
low-precision operator asks for.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from tvm import relax

_WIDE, _NARROW = 4, 2

#: Bytes for each element of a cast: as a kernel of its own, and absorbed by a neighbour.
_ALONE, _ABSORBED = _WIDE + _NARROW, 1


class CastCost(Enum):
    """What becomes of a cast once kernels are chosen."""

    LOAD = "free in a load"
    STORE = "free in a store"
    KERNEL = "a kernel of its own"


class CostModel(Protocol):
    """Knows what casts cost on a target; its kernels' library makes it, and the pass asks it.

    The answer depends on operators, attributes and types: it is the same for calls, and for parameters, that are alike
    in these, so the pass asks once for all of them.
    """

    def cast(
        self,
        producer: relax.Call | relax.Var | None,
        consumer: relax.Call | None,
        position: int,
        type: relax.TensorType,
        dtype: str,
    ) -> CastCost:
        """What a cast costs between a call and one of those that read its result.

        Parameters
        ----------
        producer
            The call that computes the tensor, or the parameter of the model that it is; None: neither, as for an input.
        consumer
            The call that reads it; None: no operator does, as for a result of the function.
        position
            The consumer's argument that is the tensor, or a tuple with it.
        type
            The tensor's type in the module that is autocast. Its shape counts, its dtype does not.
        dtype
            What it is cast to: float32 or the AMP dtype. It is in the other of both.
        """


def cast_bytes(elements: int) -> int:
    """Bytes that a cast between float32 and a 16-bit dtype reads and writes if it is a kernel of its own."""
    return elements * _ALONE


def cast_weight(objective: str, elements: int, *, absorbed: bool) -> int:
    """The weight of one cast of a tensor of `elements` elements, which a neighbouring kernel absorbs or not.

    That of an empty tensor moves nothing, but is a call: it weighs as much as that of one element.
    """
    return 1 if objective == "casts" else max(elements, 1) * (_ABSORBED if absorbed else _ALONE)


def traffic_weight(objective: str, is_view: bool, elements: int) -> int:
    """How many bytes more a flexible operator over `elements` elements in all moves in float32 than in 16 bits."""
    return 0 if objective == "casts" or is_view else elements * (_WIDE - _NARROW)
