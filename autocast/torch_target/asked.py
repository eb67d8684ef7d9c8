"""What a row is asked: a call of an operator, with the values of its arguments in a graph of torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from tvm import relax

from autocast.ir import dims, dtype_of, shape_of
from autocast.kernels.storage import LOW

#: A value while a graph is made: a proxy of torch.fx, a number, None, or a tuple of values.
Value: TypeAlias = Any

#: What a call becomes.
Row: TypeAlias = Callable[["Asked"], Value]


@dataclass(frozen=True)
class Asked:
    """A call whose arguments have values.

    Attributes
    ----------
    call : relax.Call
    args : tuple
        The values of its arguments: tensors, tuples of them, shapes (tuples of sizes), numbers.
    size : function
        The value of a size, or of a shape, of the IR.
    exact : bool
        Whether products whose result is wider than their operands are computed in that precision.
    """

    call: relax.Call
    args: tuple[Value, ...]
    size: Callable[[Any], Value]
    exact: bool = True

    @property
    def name(self) -> str:
        """The operator's name without `relax.`."""
        return str(self.call.op.name).removeprefix("relax.")

    @property
    def attrs(self) -> Any:
        """The attributes of the call."""
        return self.call.attrs

    @property
    def dtype(self) -> torch.dtype:
        """Of the result."""
        return torch_dtype(str(self.call.ty.dtype))

    @cached_property
    def shape(self) -> tuple[Value, ...]:
        """Of the result: numbers, and sizes that a call says."""
        if shape_of(self.call) is None:  # it is an argument: a variable whose value the type does not say
            shapes = [i for i, arg in enumerate(self.call.args) if isinstance(arg.ty, relax.ShapeType)]
            if shapes:
                return tuple(self.args[shapes[0]])
        return self.shape_of_type(self.call)

    def shape_of(self, index: int) -> tuple[Value, ...]:
        """Of an argument."""
        if shape_of(self.call.args[index]) is None:
            return tuple(self.args[index].size(axis) for axis in range(self.rank(index)))
        return self.shape_of_type(self.call.args[index])

    def shape_of_type(self, expr: relax.Expr) -> tuple[Value, ...]:
        return tuple(self.size(size) for size in dims(expr))

    def rank(self, index: int = 0) -> int:
        """The number of dimensions of an argument."""
        return int(self.call.args[index].ty.ndim)

    def axis(self, name: str = "axis", default: int = 0, rank: int | None = None) -> int:
        """An attribute that is an axis, counted from the front."""
        value = getattr(self.attrs, name)
        rank = self.rank() if rank is None else rank
        return default if value is None else int(value) % max(rank, 1)

    def axes(self, name: str = "axis") -> list[int]:
        """An attribute that is several axes, counted from the front; None is all of them."""
        value = getattr(self.attrs, name)
        rank = self.rank()
        return list(range(rank)) if value is None else [int(axis) % max(rank, 1) for axis in value]

    def integers(self, name: str) -> tuple[int, ...]:
        """An attribute of whole numbers."""
        return tuple(int(value) for value in getattr(self.attrs, name))

    def wide(self, index: int) -> Value:
        """An argument as it is computed with: in float32 where it is stored in 16 bits."""
        return self.args[index].to(torch.float32) if self.is_low(index) else self.args[index]

    def is_low(self, index: int = 0) -> bool:
        """Whether an argument is stored in 16 bits."""
        return dtype_of(self.call.args[index]) in LOW

    def stored(self, value: Value) -> Value:
        """What was computed of `wide` arguments, in the dtype of the result."""
        return value.to(self.dtype) if any(self.is_low(i) for i in range(len(self.args))) else value


def torch_dtype(name: str) -> torch.dtype:
    """Torch's dtype of a name such as "float32"."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def integers(values: Sequence[Any]) -> tuple[int, ...]:
    """Whole numbers of the IR."""
    return tuple(int(value) for value in values)
