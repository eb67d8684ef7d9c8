"""Converters of what is known of all elements up to each along an axis: extremes and where they are, sums, runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.functions import wide
from autocast.frontend.helpers import Converter, axis_of, cast, dims
from autocast.frontend.importer import Importer
from autocast.ir import dtype_of

op = relax.op


def running(
    importer: Importer, x: relax.Expr, axis: int, combine: Callable[[relax.Expr, relax.Expr], relax.Expr]
) -> relax.Expr:
    """Each element combined with all before it, of which twice as many are known after each step.

    Source: Hillis and Steele, "Data parallel algorithms", 1986.
    """
    size, known = dims(x)[axis], 1
    if not isinstance(size, int):
        raise ImportModelError("along an axis whose size is known only at run time")
    while known < size:

        def part(begin: int, end: int, x: relax.Expr = x) -> relax.Var:
            return importer.emit(op.strided_slice(x, [axis], [begin], [end], assume_inbound=True))

        rest = importer.emit(combine(part(known, size), part(0, size - known)))
        x = importer.emit(op.concat([part(0, known), rest], axis=axis))
        known *= 2
    return x


def _numbers(like: relax.Expr, axis: int) -> relax.Expr:
    """The number of each element along an axis."""
    shape = [-1 if at == axis else 1 for at in range(len(dims(like)))]
    return relax.const(np.arange(dims(like)[axis]).reshape(shape), "int64")


def _extremes(operator: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> Converter:
    """`cummax`, `cummin`: the extremes and the last places that have them; a NaN is one of all that follow it."""

    def convert(importer: Importer, node: fx.Node) -> list[relax.Expr]:
        x = importer.arg(node, 0, "self")
        if not dims(x):
            return [x, relax.const(0, "int64")]
        axis = axis_of(x, node.args[1])
        compared = cast(importer, x, "int8") if dtype_of(x) == "bool" else x
        found = importer.emit(op.equal(compared, running(importer, compared, axis, operator)))
        if "float" in str(dtype_of(x)):
            found = importer.emit(op.logical_or(found, importer.emit(op.isnan(x))))
        places = importer.emit(op.where(found, _numbers(x, axis), relax.const(0, "int64")))
        places = running(importer, places, axis, op.maximum)
        return [importer.emit(op.gather_elements(x, places, axis)), places]

    return convert


def _log_of_sums(importer: Importer, node: fx.Node) -> relax.Expr:
    """`logcumsumexp`."""
    x, dtype = importer.arg(node, 0, "self"), importer.dtype(node)
    if not dims(x):
        return x
    sums = running(importer, cast(importer, x, wide(dtype)), axis_of(x, node.args[1]), op.log_add_exp)
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
        starts = running(importer, importer.emit(op.concat([first, starts], axis=axis)), axis, op.maximum)
        longest = importer.emit(op.argmax(importer.emit(op.subtract(numbers, starts)), axis, True))
    found = [importer.emit(op.gather_elements(values, longest, axis)) for values in (ordered, places)]
    return found if keep else [importer.emit(op.squeeze(value, [axis])) for value in found]


#: Converters by the name of the overload.
SCANS: dict[str, Converter] = {
    "cummax.default": _extremes(op.maximum),
    "cummin.default": _extremes(op.minimum),
    "logcumsumexp.default": _log_of_sums,
    "mode.default": _mode,
}
