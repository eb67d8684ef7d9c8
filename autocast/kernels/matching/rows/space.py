"""The space that a row kernel works on, and how tensors of a function lie in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tvm import relax

from autocast.ir import same_shape, shape_of, storage
from autocast.kernels.explain import Declined

#: Dtypes of labels and places.
INTEGERS = ("int32", "int64")

#: float32 tells whole numbers apart up to here.
EXACT = 1 << 24

#: Reductions of fewer rows than this, of this many elements or more, are left to a kernel that divides rows.
_MANY_ROWS, _LONG_ROW = 4, 1 << 16
_SHARED = tuple(f"relax.{name}" for name in ("sum", "mean", "max", "min", "prod", "variance", "std"))


class Form(Enum):
    """How the elements of a tensor correspond to those of the space."""

    WHOLE = "one for each element"
    ROW = "one for each row, in dimensions of 1"
    BARE = "one for each row, without the dimensions of the row"


@dataclass(frozen=True)
class RowSpace:
    """All rows that a kernel works on.

    Attributes
    ----------
    shape
        The shape of whole tensors.
    row_dims
        How many dimensions at the end of `split` form a row.
    parts
        For each dimension of `shape` the dimensions that it is split into: groups of channels are rows.
    """

    shape: tuple
    row_dims: int
    parts: tuple[tuple, ...]

    @classmethod
    def of(cls, shape: tuple, row_dims: int) -> RowSpace:
        """The space of tensors of `shape` whose last `row_dims` dimensions are rows."""
        return cls(shape, row_dims, tuple((dim,) for dim in shape))

    @property
    def split(self) -> tuple:
        """The dimensions that the kernel sees."""
        return tuple(dim for part in self.parts for dim in part)

    @property
    def is_split(self) -> bool:
        """Whether rows are not made of whole dimensions."""
        return len(self.split) != len(self.shape)

    @property
    def rows(self) -> tuple:
        """The dimensions before those of the row."""
        return self.shape[: len(self.shape) - self.row_dims]

    def same(self, other: RowSpace) -> bool:
        """Whether both divide tensors of one shape into the same rows."""
        return self.row_dims == other.row_dims and _alike(self.shape, other.shape) and _alike(self.split, other.split)

    def form(self, shape: tuple) -> Form | None:
        """How a tensor of `shape` lies in the space; None if it does not."""
        if _alike(shape, self.shape):
            return Form.WHOLE
        if self.is_split:
            return None
        if _alike(shape, self.rows + (1,) * self.row_dims):
            return Form.ROW
        return Form.BARE if _alike(shape, self.rows) else None

    def view(self, shape: tuple, form: Form) -> tuple:
        """A tensor of `shape`, that a value of `form` is computed from, as an array in the dimensions of `split`.

        Raises
        ------
        Declined
            The tensor does not broadcast to the space.
        """
        if form is Form.BARE and shape:
            shape = (*shape, *[1] * self.row_dims)
        if len(shape) > len(self.shape):
            raise Declined(f"it reads a tensor of {len(shape)} dimensions in rows of {len(self.shape)}")
        shape = (1,) * (len(self.shape) - len(shape)) + shape
        view: list[Any] = []
        for dim, whole, part in zip(shape, self.shape, self.parts, strict=True):
            if not (isinstance(dim, int) and dim == 1) and not _alike((dim,), (whole,)):
                raise Declined(f"it reads a tensor with {dim} elements along a dimension of {whole}")
            view.extend(part if not (isinstance(dim, int) and dim == 1) else (1,) * len(part))
        return tuple(view)


def _alike(left: tuple, right: tuple) -> bool:
    if len(left) != len(right):
        return False
    if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(left, right, strict=True)):
        return False
    return same_shape(left, right)


def space_of(call: relax.Call) -> RowSpace:
    """The rows that a row operator works on.

    Raises
    ------
    Declined
        There are none that a kernel takes, or they are not of float32 numbers.
    """
    space = rows_of(call)
    if storage(call.args[0]) != "float32" or storage(call) not in ("float32", *INTEGERS):
        raise Declined(f"it computes in {storage(call.args[0])}")
    return space


def rows_of(call: relax.Call) -> RowSpace:
    """The same whatever dtype they are stored in."""
    data, attributes = call.args[0], call.attrs
    shape = shape_of(data)
    if not shape or any(shape_of(operand) is None for operand in call.args):
        raise Declined("it reads a scalar, or a dimension is not known")
    rank = len(shape)
    axes = getattr(attributes, "axes", None) or getattr(attributes, "axis", None)
    axes = range(rank) if axes is None else [axes] if isinstance(axes, int) else axes
    axes = sorted(int(axis) % rank for axis in axes)
    if axes != list(range(rank - len(axes), rank)):
        raise Declined("it is not over the last axis or the last axes")
    length = math.prod(dim for dim in shape[axes[0] :] if isinstance(dim, int))
    if length == 0 or any(isinstance(dim, int) and dim == 0 for dim in shape):
        raise Declined("its rows are empty")
    if length > EXACT and call.op.name in ("relax.argmax", "relax.argmin"):
        raise Declined("its rows are too long for places to be counted in float32")
    rows = math.prod(shape[: axes[0]]) if all(isinstance(dim, int) for dim in shape[: axes[0]]) else _MANY_ROWS
    if rows < _MANY_ROWS and length >= _LONG_ROW and call.op.name in _SHARED:
        raise Declined("its rows are few and so long that cores had better share each")
    space = RowSpace.of(shape, len(axes))
    if not hasattr(attributes, "channel_axis"):
        return space
    axis, channels = int(attributes.channel_axis) % rank, shape[int(attributes.channel_axis)]
    if axes[0] != axis + 1:
        raise Declined("channels are not right before the axes that are normalized")
    groups = int(getattr(attributes, "num_groups", 0)) or channels
    if not isinstance(channels, int) or not isinstance(groups, int):
        raise Declined("the number of channels is not known")
    parts = list(space.parts)
    parts[axis] = (groups, channels // groups)
    return RowSpace(shape, len(axes) + 1, tuple(parts))
