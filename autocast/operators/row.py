"""One row for each operator: what kind it is, and what phases and kernels have to know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

from tvm import relax

from autocast.ir import op_name

#: Operations of a call, from it and the shapes of its tensor arguments and result, () for several results. A
#: multiply-add is two.
Flops: TypeAlias = Callable[[relax.Call, list[tuple[int, ...]], tuple[int, ...]], int]


class Kind(Enum):
    """What operators do, as far as passes and kernels treat them alike."""

    ELEMENTWISE = "arithmetic on each element: fusion keeps a float32 value between two of them in registers"
    COMPARISON = "compares two elements"
    LOGIC = "of bits and truth values"
    REDUCTION = "sums and extremes: results are small, so keeping them in float32 costs little"
    SCAN = "sums of all elements up to each"
    NORMALIZATION = "statistics of rows or channels, and what they scale"
    POOLING = "sums and extremes of windows"
    LOSS = "one number of outputs and labels"
    PRODUCT = "a matrix product: operands are multiplied as they are stored, accumulated and answered in float32"
    CONVOLUTION = "a product of windows; as a product"
    CONVOLUTION_GRADIENT = "the gradient of a convolution's weight; as a product"
    ATTENTION = "two products around a softmax, in float32 inside"
    RECURRENCE = "steps through time, each a product with the state that the one before left, in float32 inside"
    VIEW = "the same elements as an array of another shape"
    MOVE = "moves, repeats or selects elements: right in any storage dtype"
    CREATION = "makes elements of a shape or a number: right in any storage dtype"
    CAST = "another dtype"
    SORT = "orders elements"
    SEARCH = "places of elements"
    VISION = "images and boxes"
    GRADIENT = "the adjoint of an operator, short for several others"
    SHORTHAND = "short for other operators, which replace it"
    DEFINED = "computed as a tensor expression says, of the user's or of ours"
    FOREIGN = "code of the user's or of the runtime's: not ours to change"


#: Right in any storage dtype: elements are moved, and not computed.
MOVING = frozenset((Kind.VIEW, Kind.MOVE, Kind.CREATION, Kind.CAST, Kind.SORT))

#: Operands stay as they are stored, and sums are float32.
MULTIPLYING = frozenset((Kind.PRODUCT, Kind.CONVOLUTION, Kind.CONVOLUTION_GRADIENT))


@dataclass(frozen=True)
class OperatorRow:
    """What is known of one operator, besides its casting rule (`type_hints`) and its gradient (`training.gradients`).

    Attributes
    ----------
    name
        The operator's full name, such as "relax.nn.silu".
    kind
        What it does.
    vector
        The function, by the name that kernels' programs use, that computes an element of float32 tensors; "" where none
        does, or several do.
    numbers
        The attributes that the function takes after the operands.
    channels_last
        How it is written where channels are the last dimension (`kernels.channels_last.rules.BEHAVIOURS`); "": only
        where they are in torch's place.
    of_nothing
        Each element of a result that is computed from no elements; None where that is not one number.
    flops
        Its operations; None where it is bound by memory.
    gradient
        Of an operator of a user's: how it is differentiated. Those of Relax and ours are in `training.gradients`.
    torch
        Of an operator of a user's: the torch operator that is imported as it, such as "audio::snake".
    """

    name: str
    kind: Kind
    vector: str = ""
    numbers: tuple[str, ...] = ()
    channels_last: str = ""
    of_nothing: float | None = None
    flops: Flops | None = None
    gradient: Callable[[Any], Sequence[Any]] | None = None
    torch: str = ""

    def but(self, **changes: Any) -> OperatorRow:
        """The same row with other values."""
        return replace(self, **changes)


def rows(kind: Kind, names: str, **values: Any) -> tuple[OperatorRow, ...]:
    """Rows of operators of Relax, whose names are given without their prefix in one string."""
    return tuple(OperatorRow(f"relax.{name}", kind, **values) for name in names.split())


#: Every operator's row, by its name.
TABLE: dict[str, OperatorRow] = {}


def add_rows(family: Iterable[OperatorRow]) -> None:
    """Put rows into the table; an operator has one."""
    for row in family:
        if row.name in TABLE:
            raise ValueError(f"{row.name} has a row already: {TABLE[row.name]}")
        TABLE[row.name] = row


def row_of(call: Any) -> OperatorRow | None:
    """The row of the operator that `call` calls; None for calls of functions, and for what is no call."""
    return TABLE.get(op_name(call) or "")


def is_kind(call: Any, *kinds: Kind) -> bool:
    """Whether `call` calls an operator of one of these kinds."""
    row = row_of(call)
    return row is not None and row.kind in kinds


def named(*kinds: Kind) -> frozenset[str]:
    """The names of the operators of these kinds."""
    return frozenset(row.name for row in TABLE.values() if row.kind in kinds)
