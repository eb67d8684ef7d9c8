"""Reductions: the adjoint of a sum is a repetition; of a choice, the adjoint where it was chosen."""

from __future__ import annotations

from tvm import relax
from tvm.relax import op

from autocast.ir import dtype_of
from autocast.training.gradients.indexing import zeros_like
from autocast.training.gradients.registry import Adjoint, Backward, gradient, not_differentiable
from autocast.training.gradients.shapes import axes_of, extent_of, number, rank, reshaped, shape_expr


def _axes(b: Backward) -> list[int]:
    return axes_of(b.call.attrs.axis, rank(b.call.args[0]))


def _kept(b: Backward, reduced: relax.Expr) -> relax.Expr:
    """A reduced tensor with 1 for each axis that went, so that it broadcasts against the argument."""
    axes = _axes(b)
    return reduced if b.call.attrs.keepdims or not axes else op.expand_dims(reduced, axes)


def _repeated(b: Backward, reduced: relax.Expr) -> relax.Expr:
    """A reduced tensor in the shape of the argument."""
    return op.broadcast_to(_kept(b, reduced), shape_expr(b.call.args[0]))


def _count(b: Backward) -> relax.Expr:
    """How many elements were reduced to one."""
    return extent_of(b.call.args[0], _axes(b))


def _sum(b: Backward) -> list[Adjoint]:
    return [_repeated(b, b.adjoint)]


def _mean(b: Backward) -> list[Adjoint]:
    return [_repeated(b, b.emit(b.adjoint / _count(b)))]


def _extremum(b: Backward) -> list[Adjoint]:
    """Elements that tie share the adjoint equally, as in torch's amax."""
    x = b.call.args[0]
    chosen = b.emit(op.astype(op.equal(x, _kept(b, b.result)), dtype_of(x)))
    share = op.divide(_kept(b, b.adjoint), op.sum(chosen, _axes(b), keepdims=True))
    return [chosen * share]


def _centered(b: Backward) -> relax.Expr:
    x = b.call.args[0]
    return x - op.mean(x, _axes(b), keepdims=True)


def _variance(b: Backward) -> list[Adjoint]:
    scale = b.emit(b.adjoint * number(2.0, b.result) / _count(b))
    return [_centered(b) * _kept(b, scale)]


def _std(b: Backward) -> list[Adjoint]:
    """0 where all elements are equal, as to torch."""
    zero = number(0.0, b.result)
    scale = b.emit(b.adjoint / (b.result * _count(b)))
    return [_centered(b) * _kept(b, b.emit(op.where(op.equal(b.result, zero), zero, scale)))]


def _prod(b: Backward) -> list[Adjoint]:
    """The product of the others: also right where one element, or several, are zero."""
    x = b.call.args[0]
    zero, one = number(0.0, x), number(1.0, x)
    is_zero = b.emit(op.equal(x, zero))
    filled = b.emit(op.where(is_zero, one, x))
    axes = _axes(b)
    product = op.prod(filled, axes, keepdims=True)
    zeros = b.emit(op.sum(op.astype(is_zero, dtype_of(x)), axes, keepdims=True))
    only, none = op.where(op.equal(zeros, one), one, zero), op.where(op.equal(zeros, zero), one, zero)
    others = product / filled * op.where(is_zero, only, none)
    return [others * _kept(b, b.adjoint)]


def _median(b: Backward) -> list[Adjoint]:
    x, axes = b.call.args[0], _axes(b)
    values, places = b.adjoint[0], b.emit(relax.TupleGetItem(b.result, 1))
    return [op.scatter_elements(zeros_like(x), _kept(b, places), _kept(b, values), axes[0], "add")]


def _cumsum(b: Backward) -> list[Adjoint]:
    """The sum from the other end."""
    x, attrs = b.call.args[0], b.call.attrs
    axis = 0 if attrs.axis is None else int(attrs.axis)
    backward = op.flip(op.cumsum(op.flip(b.adjoint, axis), axis, exclusive=bool(attrs.exclusive)), axis)
    adjoint = backward if attrs.axis is not None else reshaped(backward, x)
    return [adjoint if dtype_of(b.result) == dtype_of(x) else op.astype(adjoint, dtype_of(x))]


def _collapse_sum(b: Backward) -> list[Adjoint]:
    return [op.broadcast_to(b.adjoint, shape_expr(b.call.args[0])), None]


RULES = (
    gradient("relax.sum", _sum, why="the adjoint, repeated"),
    gradient("relax.mean", _mean, why="the adjoint / count, repeated"),
    gradient("relax.max", _extremum, why="the adjoint, shared by the elements that are the maximum"),
    gradient("relax.min", _extremum, why="the adjoint, shared by the elements that are the minimum"),
    gradient("relax.variance", _variance, why="2 (x - mean) / count"),
    gradient("relax.std", _std, why="(x - mean) / (count std)"),
    gradient("relax.prod", _prod, why="the product of the other elements"),
    gradient("relax.median", _median, why="the adjoint at the place of the median"),
    gradient("relax.cumsum", _cumsum, why="the cumulative sum from the other end"),
    not_differentiable("relax.cumprod", why="it divides by elements, which may be zero; use exp(cumsum(log x))"),
    gradient("relax.collapse_sum_to", _collapse_sum, why="the adjoint, repeated"),
    gradient("relax.collapse_sum_like", _collapse_sum, why="the adjoint, repeated"),
)
