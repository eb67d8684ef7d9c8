"""The space that a row kernel works on, and how tensors of a function lie in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from tvm import tirx

from autocast.kernels.graph.canonicalize import same_shape


class DeclinedError(Exception):
    """No row kernel computes an operator; the message is the reason."""


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
        DeclinedError
            The tensor does not broadcast to the space.
        """
        if form is Form.BARE and shape:
            shape = (*shape, *[1] * self.row_dims)
        if len(shape) > len(self.shape):
            raise DeclinedError(f"it reads a tensor of {len(shape)} dimensions in rows of {len(self.shape)}")
        shape = (1,) * (len(self.shape) - len(shape)) + shape
        view: list[Any] = []
        for dim, whole, part in zip(shape, self.shape, self.parts, strict=True):
            if not (isinstance(dim, int) and dim == 1) and not _alike((dim,), (whole,)):
                raise DeclinedError(f"it reads a tensor with {dim} elements along a dimension of {whole}")
            view.extend(part if not (isinstance(dim, int) and dim == 1) else (1,) * len(part))
        return tuple(view)


def is_simple(shape: tuple | None) -> bool:
    """Whether all dimensions are numbers or run-time variables."""
    return shape is not None and all(isinstance(dim, int | tirx.Var) for dim in shape)


def _alike(left: tuple, right: tuple) -> bool:
    if len(left) != len(right):
        return False
    if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(left, right, strict=True)):
        return False
    return same_shape(left, right)
