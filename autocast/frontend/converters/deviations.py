"""Converters of variances and standard deviations, with the mean beside them or without, and their corrections."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import fx
from tvm import relax

from autocast.frontend.converters.helpers import Converter, dims
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of

op = relax.op


def _converter(square_root: bool, with_mean: bool) -> Converter:
    """One of them; a scalar has one element."""

    def convert(importer: Importer, node: fx.Node) -> Any:
        x, axes = importer.arg(node, 0, "self"), list(importer.arg(node, 1, "dim") or [])
        correction, keep = importer.arg(node, 2, "correction"), bool(importer.arg(node, 3, "keepdim", False))
        if not dims(x):
            x, axes, keep = importer.emit(op.reshape(x, [1])), [0], False
        axes = axes or list(range(len(dims(x))))
        mean = importer.emit(op.mean(x, axes, keepdims=True)) if with_mean else None
        if mean is None or square_root:
            spread = importer.emit((op.std if square_root else op.variance)(x, axes, keep))
        else:  # the mean is there
            spread = importer.emit(op.mean(op.square(op.subtract(x, mean)), axes, keep))
        if correction != 0:
            factor = _unbiased(importer, x, axes, 1 if correction is None else correction, square_root)
            spread = importer.emit(op.multiply(spread, factor))
        if mean is None:
            return spread
        return [spread, mean if keep else importer.emit(op.squeeze(mean, axes))]

    return convert


def _unbiased(importer: Importer, x: relax.Expr, axes: list[int], correction: float, square_root: bool) -> relax.Expr:
    """What one of them is multiplied by, a 0-d tensor: infinite where a correction leaves no degree of freedom."""
    count, dtype = math.prod(dims(x)[axis] for axis in axes), str(dtype_of(x))
    if isinstance(count, int):
        ratio = count / (count - correction) if count > correction else math.inf
        return relax.const(math.sqrt(ratio) if square_root else ratio, dtype)
    elements = importer.number(count, dtype)
    freedom = op.maximum(op.subtract(elements, relax.const(correction, dtype)), relax.const(0, dtype))
    variance = importer.emit(op.divide(elements, freedom))
    return importer.emit(op.sqrt(variance)) if square_root else variance


DEVIATIONS: dict[str, Callable[[Importer, fx.Node], Any]] = {
    "std.correction": _converter(square_root=True, with_mean=False),
    "std_mean.correction": _converter(square_root=True, with_mean=True),
    "var.correction": _converter(square_root=False, with_mean=False),
    "var_mean.correction": _converter(square_root=False, with_mean=True),
}
