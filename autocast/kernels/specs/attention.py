"""What an attention kernel computes, as a value: equal ones share a kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tvm import tirx

from autocast.kernels.extents import Extent, i64


@dataclass(frozen=True)
class Size:
    """A product of a number and of dimensions that are known at run time, which have names."""

    factor: int = 1
    names: tuple[str, ...] = ()

    def __mul__(self, other: Size) -> Size:
        return Size(self.factor * other.factor, tuple(sorted((*self.names, *other.names))))

    def over(self, other: Size) -> Size | None:
        """`self / other`; None where `other` does not divide `self`, whatever the named dimensions are."""
        left = list(self.names)
        for name in other.names:
            if name not in left:
                return None
            left.remove(name)
        if other.factor == 0 or self.factor % other.factor:
            return None
        return Size(self.factor // other.factor, tuple(left))

    @property
    def known(self) -> int | None:
        """The number, if it is one."""
        return None if self.names and self.factor else self.factor

    def extent(self, sizes: Mapping[str, tirx.Var]) -> Extent:
        """The size as code: a number, or an int64 expression of the variables `sizes`."""
        if self.known is not None:
            return self.known
        return math.prod((sizes[name] for name in self.names[1:]), start=sizes[self.names[0]]) * i64(self.factor)


@dataclass(frozen=True)
class OperandView:
    """Where matrices of an operand lie: element (leading..., row, column) of argument `argument`.

    It is at `sum(offsets) + leading . leading strides + row * rows + column * columns` of the argument's memory.
    """

    argument: int
    offsets: tuple[Size, ...]
    leading: tuple[Size, ...]
    rows: Size
    columns: Size = Size()


@dataclass(frozen=True)
class Step:
    """What is done to the scores, in this order, before their softmax.

    `kind` is "scale" (they are multiplied by `value`), "add" (a tensor is added), "keep" (they become `value` where a
    bool tensor is false) or "drop" (where it is true).
    """

    kind: str
    value: float = 0.0
    view: OperandView | None = None


@dataclass(frozen=True)
class Attention:
    """softmax(steps(Q K^T)) V for every combination of leading indices.

    Attributes
    ----------
    arguments
        (shape, dtype) of each tensor that is read; dimensions known at run time are named.
    out
        (shape, dtype) of the result.
    leading
        Extents of batch, heads and whatever else comes before the matrices; views have a stride for each.
    queries, keys, depth, value_depth
        Q is queries x depth, K keys x depth, V keys x value_depth.
    query, key, value, result
        Where the matrices are; the argument of `result` is the output.
    causal
        How many keys the first query sees, less one: query i sees the keys up to i + causal. "difference" stands for
        |keys - queries|, None for all keys.
    zero_empty
        Whether a query that sees no key gives 0 rather than NaN.
    """

    arguments: tuple[tuple[tuple[int | str, ...], str], ...]
    out: tuple[tuple[int | str, ...], str]
    leading: tuple[Size, ...]
    queries: Size
    keys: Size
    depth: int
    value_depth: int
    query: OperandView
    key: OperandView
    value: OperandView
    result: OperandView
    steps: tuple[Step, ...] = field(default=())
    causal: int | str | None = None
    zero_empty: bool = False

    @property
    def shared(self) -> int:
        """How many of the last leading dimensions have the same keys and values: a group of heads."""
        count = 0
        while count < len(self.leading) and all(
            view.leading[-1 - count].factor == 0 for view in (self.key, self.value)
        ):
            count += 1
        return count

    @property
    def storages(self) -> tuple[str, str, str]:
        """The dtypes in which Q, K and V are stored."""
        query, key, value = (self.arguments[view.argument][1] for view in (self.query, self.key, self.value))
        return query, key, value
