"""Convolutions and pooling along one axis as those of images that are one pixel high."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from autocast.ir import dims
from autocast.ir.rewriting import BindingRewriter
from autocast.kernels.specs.convolutions import Pair


def image(shape: tuple) -> tuple:
    """(batch, width, channels) or (batch, height, width, channels) with a height."""
    return shape if len(shape) == 4 else (shape[0], 1, *shape[1:])


def pair(extents: Sequence, height: int) -> Pair:
    """What an attribute says along height and width; `height` where it only speaks of the width."""
    first, *second = [int(extent) for extent in extents]
    return (first, second[0]) if second else (height, first)


def sides(padding: Sequence) -> tuple[int, int, int, int]:
    """Padding at the top, left, bottom and right."""
    if len(padding) == 2:
        return (0, int(padding[0]), 0, int(padding[1]))
    top, left, bottom, right = map(int, padding)
    return (top, left, bottom, right)


def known(dim: object) -> int | None:
    """A dimension that is known now; None for one that is known at run time."""
    return dim if isinstance(dim, int) else None


def viewed(rewriter: BindingRewriter, value: relax.Expr, shape: tuple) -> relax.Expr:
    """`value` with a height of 1 more or less, as `shape` says."""
    value = value if isinstance(value, relax.Var) else rewriter.builder_.normalize(value)
    if len(dims(value)) == len(shape):
        return value
    return relax.op.reshape(value if isinstance(value, relax.Var) else rewriter.emit(value), relax.ShapeExpr(shape))


def as_image(rewriter: BindingRewriter, value: relax.Expr) -> relax.Expr:
    """`value` with a height, bound to a variable."""
    view = viewed(rewriter, value, image(dims(value)))
    return view if isinstance(view, relax.Var) else rewriter.emit(view)
