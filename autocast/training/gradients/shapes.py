"""What rules of gradients share: shapes, literals, and the inverse of broadcasting."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax
from tvm.relax import op

from autocast.errors import GradientError
from autocast.ir import dtype_of, is_constant, same_shape, shape_of
from autocast.operators import own
from autocast.training.gradients.registry import Backward


def number(value: float, like: relax.Expr) -> relax.Expr:
    """A literal 0-d tensor of the dtype of `like`."""
    return relax.const(value, dtype_of(like))


def shape_expr(expr: relax.Expr) -> relax.Expr:
    """The shape of a tensor as an argument of an operator, also where it is known at run time only."""
    return expr.ty.shape if shape_of(expr) is not None else op.shape_of(expr)


def known_shape(expr: relax.Expr) -> tuple:
    """The dimensions of a tensor; GradientError where its type does not say them."""
    shape = shape_of(expr)
    if shape is None:
        raise GradientError(f"got a {expr.ty}, expected a tensor of known shape; declare its dimensions")
    return shape


def extent_of(expr: relax.Expr, axes: Sequence[int], dtype: str | None = None) -> relax.Expr:
    """How many elements lie along axes, in the dtype of a tensor or another: a literal, or a 0-d tensor where the sizes
    are known at run time only."""
    shape, dtype = known_shape(expr), dtype or dtype_of(expr)
    known = relax.const(math.prod(size for size in (shape[axis] for axis in axes) if isinstance(size, int)), dtype)
    unknown = [axis for axis in axes if not isinstance(shape[axis], int)]
    if not unknown:
        return known
    extents = op.take(op.shape_to_tensor(op.shape_of(expr)), relax.const(unknown, "int64"), 0)
    return known * op.astype(op.prod(extents), dtype)


def rank(expr: relax.Expr) -> int:
    """The number of axes of a tensor."""
    return int(expr.ty.ndim)


def axes_of(axis: int | Sequence[int] | None, count: int) -> list[int]:
    """An attribute that names axes as a sorted list, none negative; None names all of them."""
    if axis is None:
        return list(range(count))
    axes = [axis] if isinstance(axis, int) else axis
    return sorted(int(i) % count for i in axes)


def reshaped(adjoint: relax.Expr, like: relax.Expr) -> relax.Expr:
    """`adjoint` in the shape of `like`."""
    return op.reshape(adjoint, shape_expr(like))


def unbroadcast(b: Backward, adjoint: relax.Expr, like: relax.Expr) -> relax.Expr:
    """The adjoint of `like`, which was broadcast to the shape of `adjoint`: the sum over what was repeated."""
    adjoint = adjoint if isinstance(adjoint, relax.Var) or is_constant(adjoint) else b.emit(adjoint)
    have, want = shape_of(adjoint), shape_of(like)
    if same_shape(have, want):
        return adjoint
    if have is None or want is None:
        return op.collapse_sum_to(adjoint, shape_expr(like))
    added = len(have) - len(want)
    repeated = [added + i for i, size in enumerate(want) if not same_shape([have[added + i]], [size])]
    if any(not same_shape([want[i - added]], [1]) for i in repeated):
        return op.collapse_sum_to(adjoint, relax.ShapeExpr(want))
    total = own.broadcast_backward(adjoint, axis=[*range(added), *repeated])
    if dtype_of(adjoint) not in ("float32", "float64"):
        total = op.astype(total, dtype_of(adjoint))
    return op.reshape(total, relax.ShapeExpr(want)) if repeated else total
