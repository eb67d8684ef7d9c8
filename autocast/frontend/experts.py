"""Converters of the products of mixtures of experts: rows sorted by expert, each times the matrix of its own."""

from __future__ import annotations

from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.helpers import Converter, cast, dims
from autocast.frontend.importer import Importer
from autocast.operators import own


def _grouped(importer: Importer, node: fx.Node) -> relax.Expr:
    """`torch._grouped_mm` of rows, and transformers' operator of the same meaning for what torch has no kernel for."""
    x, weight, ends = (importer.arg(node, i, name) for i, name in ((0, "self"), (1, "mat2"), (2, "offs")))
    bias = importer.arg(node, 3, "bias")
    if ends is None:
        product = relax.op.matmul(x, weight)
    elif len(dims(x)) == 2 and len(dims(weight)) == 3:
        product = own.grouped_matmul(x, weight, ends)
    else:
        raise ImportModelError("a grouped product of something else than rows and a matrix for each group of them")
    result = importer.emit(product)
    if bias is not None:
        result = importer.emit(relax.op.add(result, bias))
    return cast(importer, result, importer.dtype(node))


#: Converters by the name of the overload.
EXPERTS: dict[str, Converter] = {
    "_grouped_mm.default": _grouped,
    "transformers::grouped_mm_fallback.default": _grouped,
}
