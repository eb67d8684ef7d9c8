"""Converters of what is known of all elements up to each along an axis: extremes and where they are, sums, runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.functions import wide
from autocast.frontend.converters.helpers import Converter, axis_of, cast, dims
from autocast.frontend.converters.reductions import scan
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of

op = relax.op

#: Combines tensors with those of earlier elements.
Combine: TypeAlias = Callable[[Sequence[relax.Expr], Sequence[relax.Expr]], list[relax.Expr]]


def running(importer: Importer, x: Sequence[relax.Expr], axis: int, combine: Combine) -> list[relax.Expr]:
    """Each element combined with all before it, of which twice as many are known after each step.

    Source: Hillis and Steele, "Data parallel algorithms", 1986.
    """
    size, known = dims(x[0])[axis], 1
    if not isinstance(size, int):
        raise ImportModelError("along an axis whose size is known only at run time")

    def parts(begin: int, end: int) -> list[relax.Expr]:
        cut = (op.strided_slice(each, [axis], [begin], [end], assume_inbound=True) for each in x)
        return [importer.emit(part) for part in cut]

    while known < size:
        rest = combine(parts(known, size), parts(0, size - known))
        x = [importer.emit(op.concat(pair, axis=axis)) for pair in zip(parts(0, known), rest, strict=True)]
        known *= 2
    return list(x)


def _one(importer: Importer, operator: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> Combine:
    """What combines one tensor with one."""
    return lambda later, earlier: [importer.emit(operator(*later, *earlier))]


def _numbers(like: relax.Expr, axis: int) -> relax.Expr:
    """The number of each element along an axis."""
    shape = [-1 if at == axis else 1 for at in range(len(dims(like)))]
    return relax.const(np.arange(dims(like)[axis]).reshape(shape), "int64")


def _extremes(is_beyond: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> Converter:
    """`cummax`, `cummin`: the extremes and the last places that have them; a NaN is one of all that follow it.

    Places go along with the extremes: none would be found by comparing elements with extremes that a policy rounds.
    """

    def convert(importer: Importer, node: fx.Node) -> list[relax.Expr]:
        x = importer.arg(node, 0, "self")
        if not dims(x):
            return [x, relax.const(0, "int64")]
        axis = axis_of(x, node.args[1])
        compared = cast(importer, x, "int8") if dtype_of(x) == "bool" else x

        def combine(later: Sequence[relax.Expr], earlier: Sequence[relax.Expr]) -> list[relax.Expr]:
            taken = importer.emit(is_beyond(later[0], earlier[0]))
            if "float" in str(dtype_of(x)):
                taken = importer.emit(op.logical_or(taken, importer.emit(op.isnan(later[0]))))
            return [importer.emit(op.where(taken, *pair)) for pair in zip(later, earlier, strict=True)]

        numbers = importer.emit(op.broadcast_to(_numbers(x, axis), x.ty.shape))
        _, places = running(importer, [compared, numbers], axis, combine)
        return [importer.emit(op.gather_elements(x, places, axis)), places]

    return convert


def _cumulative_product(importer: Importer, node: fx.Node) -> relax.Expr:
    """In training of operators that have gradients, where elements are 0, too."""
    x, dtype = importer.arg(node, 0, "self"), importer.dtype(node)
    if not (importer.training and dims(x) and "float" in dtype):
        return scan(op.cumprod)(importer, node)
    combine = _one(importer, op.multiply)
    (products,) = running(importer, [cast(importer, x, wide(dtype))], axis_of(x, node.args[1]), combine)
    return cast(importer, products, dtype)


def _log_of_sums(importer: Importer, node: fx.Node) -> relax.Expr:
    """`logcumsumexp`."""
    x, dtype = importer.arg(node, 0, "self"), importer.dtype(node)
    if not dims(x):
        return x
    terms, combine = [cast(importer, x, wide(dtype))], _one(importer, op.log_add_exp)
    (sums,) = running(importer, terms, axis_of(x, node.args[1]), combine)
    return cast(importer, sums, dtype)


def _mode(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    """The most frequent element along an axis, the smallest of several, and the last place that has it."""
    x, keep = importer.arg(node, 0, "self"), bool(importer.arg(node, 2, "keepdim", False))
    if not dims(x):
        return [x, relax.const(0, "int64")]
    axis = axis_of(x, importer.arg(node, 1, "dim", -1))
    size = dims(x)[axis]
    ordered, places = importer.emit(op.sort(x, axis)), importer.emit(op.argsort(x, axis, dtype="int64"))
    numbers, zero = _numbers(x, axis), relax.const(0, "int64")
    if size == 1:
        longest = importer.emit(op.zeros(x.ty.shape, "int64"))
    else:
        this, before = (
            importer.emit(op.strided_slice(ordered, [axis], [begin], [begin + size - 1], assume_inbound=True))
            for begin in (1, 0)
        )
        rest = importer.emit(op.strided_slice(numbers, [axis], [1], [size], assume_inbound=True))
        starts = importer.emit(op.where(importer.emit(op.not_equal(this, before)), rest, zero))
        first = importer.emit(op.zeros([1 if at == axis else extent for at, extent in enumerate(dims(x))], "int64"))
        starts = importer.emit(op.concat([first, starts], axis=axis))
        (starts,) = running(importer, [starts], axis, _one(importer, op.maximum))
        longest = importer.emit(op.argmax(importer.emit(op.subtract(numbers, starts)), axis, True))
    found = [importer.emit(op.gather_elements(values, longest, axis)) for values in (ordered, places)]
    return found if keep else [importer.emit(op.squeeze(value, [axis])) for value in found]


#: Converters by the name of the overload.
SCANS: dict[str, Converter] = {
    "cummax.default": _extremes(op.greater_equal),
    "cummin.default": _extremes(op.less_equal),
    "cumprod.default": _cumulative_product,
    "logcumsumexp.default": _log_of_sums,
    "mode.default": _mode,
}
