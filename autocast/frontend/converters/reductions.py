"""Converters of what runs along axes, or along the one that a scalar has to torch: sums, extremes, norms, scans."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.helpers import Converter, axis_of, cast, dims
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of

op = relax.op

#: Reduces a tensor along axes (None: all), and keeps them or does not.
_Reduction = Callable[[relax.Expr, Sequence[int] | None, bool], relax.Expr]


def _along(importer: Importer, node: fx.Node, x: relax.Expr, reduce: _Reduction, position: int = 1) -> relax.Expr:
    """The reduction of `x` along the axes that are an argument of `node`, before whether they are kept."""
    axes, keep = importer.arg(node, position, "dim"), bool(importer.arg(node, position + 1, "keepdim", False))
    axes = [axes] if isinstance(axes, int) else list(axes or []) or None
    if not dims(x):
        return importer.emit(reduce(importer.emit(op.reshape(x, [1])), [0], False))
    return importer.emit(reduce(x, axes, keep))


def _reduced(reduce: _Reduction) -> Converter:
    """A reduction in the dtype of its result."""
    return lambda importer, node: _along(
        importer, node, cast(importer, importer.arg(node, 0, "self"), importer.dtype(node)), reduce
    )


def _any(importer: Importer, node: fx.Node) -> relax.Expr:
    """Whether any element is true, of none of which none is: how many are."""
    x = importer.emit(op.astype(cast(importer, importer.arg(node, 0, "self"), "bool"), "int32"))
    count = _along(importer, node, x, op.sum)
    return importer.emit(op.greater(count, relax.const(0, "int32")))


def _extreme_and_place(reduce: _Reduction, place: Callable[..., relax.Expr]) -> Converter:
    """`max(dim)`, `min(dim)`: the element and its index; that of a scalar is 0."""

    def convert(importer: Importer, node: fx.Node) -> list[relax.Expr]:
        x, keep = importer.arg(node, 0, "self"), bool(importer.arg(node, 2, "keepdim", False))
        if not dims(x):
            return [x, relax.const(0, "int64")]
        axis = axis_of(x, node.args[1])
        return [importer.emit(reduce(x, [axis], keep)), importer.emit(place(x, axis, keep))]

    return convert


def _sort(position: int) -> Converter:
    """The elements in order, and where they were; `position` is that of the axis among the arguments."""

    def convert(importer: Importer, node: fx.Node) -> list[relax.Expr]:
        x, descending = importer.arg(node, 0, "self"), bool(importer.arg(node, position + 1, "descending", False))
        if not dims(x):
            return [x, relax.const(0, "int64")]
        axis = axis_of(x, importer.arg(node, position, "dim", -1))
        places = importer.emit(op.argsort(x, axis, descending, "int64"))
        return [importer.emit(op.sort(x, axis, descending)), places]

    return convert


def _kth(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    """The k-th smallest element along an axis, and where it is."""
    x, k = importer.arg(node, 0, "self"), importer.arg(node, 1, "k")
    if not dims(x):
        return [x, relax.const(0, "int64")]
    axis, keep = axis_of(x, importer.arg(node, 2, "dim", -1)), bool(importer.arg(node, 3, "keepdim", False))
    found = []
    for values in (op.sort(x, axis), op.argsort(x, axis, dtype="int64")):
        one = importer.emit(op.strided_slice(importer.emit(values), [axis], [k - 1], [k], assume_inbound=True))
        found.append(one if keep else importer.emit(op.squeeze(one, [axis])))
    return found


def _median(ignoring_nan: bool) -> Converter:
    """The lower median of all elements, or along an axis and where it is: NaN where there is one, unless ignored."""

    def convert(importer: Importer, node: fx.Node) -> relax.Expr | list[relax.Expr]:
        x, whole = importer.arg(node, 0, "self"), len(node.args) == 1
        if not dims(x):
            return x if whole else [x, relax.const(0, "int64")]
        if whole:
            x = importer.emit(op.reshape(x, (-1,)))
        axis, keep = (0, False) if whole else (axis_of(x, node.args[1]), bool(importer.arg(node, 2, "keepdim", False)))
        size = dims(x)[axis]
        if not isinstance(size, int) or size == 0:
            raise ImportModelError("the median of as many elements as are known at run time, or of none")
        may_be_nan = "float" in str(dtype_of(x))
        numbers = op.logical_not(op.isnan(x)) if may_be_nan else op.ones(x.ty.shape, "bool")
        known = importer.emit(op.sum(op.astype(numbers, "int64"), axis, keepdims=True))  # NaN is sorted after them
        middle, one, two = (relax.const(number, "int64") for number in ((size - 1) // 2, 1, 2))
        if ignoring_nan:
            lower = importer.emit(op.floor_divide(op.subtract(known, one), two))
            place = importer.emit(op.maximum(lower, relax.const(0, "int64")))
        else:
            complete = importer.emit(op.equal(known, relax.const(size, "int64")))
            place = importer.emit(op.where(complete, middle, known))
        found = []
        for values in (op.sort(x, axis), op.argsort(x, axis, dtype="int64"))[: 1 if whole else 2]:
            at = importer.emit(op.gather_elements(importer.emit(values), place, axis))
            found.append(at if keep else importer.emit(op.squeeze(at, [axis])))
        return found[0] if whole else found

    return convert


def scan(operator: Callable[[relax.Expr, int], relax.Expr]) -> Converter:
    """A cumulative sum or product, in the dtype of its result."""

    def convert(importer: Importer, node: fx.Node) -> relax.Expr:
        x = cast(importer, importer.arg(node, 0, "self"), importer.dtype(node))
        return importer.emit(operator(x, axis_of(x, node.args[1]))) if dims(x) else x

    return convert


def _norm(importer: Importer, node: fx.Node) -> relax.Expr:
    """A vector norm: of order 0 how many elements are not 0, of an infinite one the largest or the smallest."""
    order = float(importer.arg(node, 1, "ord", 2))
    x = cast(importer, importer.arg(node, 0, "self"), importer.dtype(node))

    def reduce(x: relax.Expr, axes: Sequence[int] | None, keep: bool) -> relax.Expr:
        if order == 2:
            return op.sqrt(_stopped_at_zero(importer, op.sum(op.square(x), axes, keep)))
        if math.isinf(order):
            return (op.max if order > 0 else op.min)(op.abs(x), axes, keep)
        if order == 0:
            zero = relax.const(0, importer.dtype(node))
            return op.sum(op.astype(op.not_equal(x, zero), importer.dtype(node)), axes, keep)
        if order == 1:
            return op.sum(op.abs(x), axes, keep)
        lengths = op.abs(x) if order > 1 else _stopped_at_zero(importer, op.abs(x))
        powers = op.sum(op.power(lengths, relax.const(order, importer.dtype(node))), axes, keep)
        powers = _stopped_at_zero(importer, powers) if order > 1 else powers
        return op.power(powers, relax.const(1 / order, importer.dtype(node)))

    return _along(importer, node, x, reduce, position=2)


def _stopped_at_zero(importer: Importer, x: relax.Expr) -> relax.Expr:
    """`x`, with no gradient where it is 0: that of a root is infinite there, of a norm it is 0 to torch."""
    x = importer.emit(x)
    zero = relax.const(0, str(dtype_of(x)))
    return importer.emit(op.where(importer.emit(op.equal(x, zero)), zero, x))


#: Converters by the name of the overload.
REDUCTIONS: dict[str, Converter] = {
    "any.default": _any,
    "any.dim": _any,
    "any.dims": _any,
    "cumsum.default": scan(op.cumsum),
    "kthvalue.default": _kth,
    "linalg_vector_norm.default": _norm,
    "max.dim": _extreme_and_place(op.max, op.argmax),
    "mean.dim": _reduced(op.mean),
    "median.default": _median(ignoring_nan=False),
    "median.dim": _median(ignoring_nan=False),
    "min.dim": _extreme_and_place(op.min, op.argmin),
    "nanmedian.default": _median(ignoring_nan=True),
    "nanmedian.dim": _median(ignoring_nan=True),
    "norm.Scalar": _norm,
    "prod.dim_int": _reduced(op.prod),
    "sort.default": _sort(1),
    "sort.stable": _sort(2),
    "sum.dim_IntList": _reduced(op.sum),
}
