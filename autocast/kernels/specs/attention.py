"""What an attention kernel computes, as a value: equal ones share a kernel."""

from __future__ import annotations

from dataclasses import dataclass, field

from autocast.kernels.specs.sizes import Size


@dataclass(frozen=True)
class OperandView:
    """Where matrices of an operand lie: element (leading..., row, column) of argument `argument`.

    It is at `offset + leading . leading strides + row * rows + column * columns` of the argument's memory.
    """

    argument: int
    offset: Size
    leading: tuple[Size, ...]
    rows: Size
    columns: Size = 1


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
        while count < len(self.leading) and self.key.leading[-1 - count] == self.value.leading[-1 - count] == 0:
            count += 1
        return count

    @property
    def storages(self) -> tuple[str, str, str]:
        """The dtypes in which Q, K and V are stored."""
        query, key, value = (self.arguments[view.argument][1] for view in (self.query, self.key, self.value))
        return query, key, value
