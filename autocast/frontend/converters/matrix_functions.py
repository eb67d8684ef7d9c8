"""Converters of functions of square matrices."""

from __future__ import annotations

import numpy as np
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.functions import wide
from autocast.frontend.converters.helpers import Converter, cast, dims
from autocast.frontend.importing.importer import Importer
from autocast.ir import Place

op = relax.op

#: By what is computed in: the degree of a Taylor polynomial, and the norm up to which it is exact but for rounding.
#: Source: Bader, Blanes, Casas, "Computing the matrix exponential with an optimized Taylor polynomial approximation",
#: 2019.
_TAYLOR = {"float32": (8, 0.58), "float64": (18, 1.09)}

#: How often a matrix is halved at most: one whose norm is 38,000 has no digit of its exponential in float32.
_HALVINGS = 16


def _exponential(importer: Importer, node: fx.Node) -> relax.Expr:
    """A matrix is halved until the polynomial is exact, whose value is squared as often; batches differ in how often.

    Comparisons say how often, which have no gradient. No policy rounds what is squared again and again.
    """
    dtype = importer.dtype(node)
    x = cast(importer, importer.arg(node, 0, "self"), wide(dtype))
    size, (degree, most) = dims(x)[-1], _TAYLOR[wide(dtype)]
    if not isinstance(size, int):
        raise ImportModelError("a matrix whose size is known only at run time")
    before = importer.block_builder.place or Place()
    importer.block_builder.place = before._replace(region=before.region or "float32")

    def number(value: float) -> relax.Expr:
        return relax.const(value, wide(dtype))

    norm = importer.emit(op.max(op.sum(op.abs(x), -2, keepdims=True), -1, keepdims=True))
    larger = [importer.emit(op.greater(norm, number(most * 2**n))) for n in range(_HALVINGS)]
    for is_larger in larger:
        x = importer.emit(op.multiply(x, op.where(is_larger, number(0.5), number(1.0))))
    identity = relax.const(np.eye(size), wide(dtype))
    result = importer.emit(op.add(op.multiply(x, number(1 / degree)), identity))
    for n in range(degree - 1, 0, -1):
        result = importer.emit(op.add(op.multiply(op.matmul(x, result), number(1 / n)), identity))
    for is_larger in larger:
        result = importer.emit(op.where(is_larger, op.matmul(result, result), result))
    importer.block_builder.place = before
    return cast(importer, result, dtype)


#: Converters by the name of the overload.
MATRIX_FUNCTIONS: dict[str, Converter] = {"linalg_matrix_exp.default": _exponential}
