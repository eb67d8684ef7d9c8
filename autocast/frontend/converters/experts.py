"""Converters of the products of mixtures of experts: rows sorted by expert, each times the matrix of its own."""

from __future__ import annotations

from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.helpers import Converter, cast, dims
from autocast.frontend.importing.importer import Importer
from autocast.operators import own
from autocast.operators.own.grouped import products_of_groups


def _grouped(importer: Importer, node: fx.Node) -> relax.Expr:
    """`torch._grouped_mm` of rows, and transformers' operator of the same meaning for what torch has no kernel for."""
    x, weight, ends = (importer.arg(node, i, name) for i, name in ((0, "self"), (1, "mat2"), (2, "offs")))
    bias = importer.arg(node, 3, "bias")
    if ends is None:
        product = relax.op.matmul(x, weight)
    elif len(dims(x)) == 2 and len(dims(weight)) == 3:
        product = own.grouped_matmul(x, weight, ends)
    elif len(dims(x)) == len(dims(weight)) == 2:  # the gradient of the matrices
        product = products_of_groups(importer.emit, importer.emit(relax.op.permute_dims(x)), ends, weight)
    else:
        raise ImportModelError("a grouped product of something else than rows and a matrix for each group of them")
    result = importer.emit(product)
    if bias is not None:
        result = importer.emit(relax.op.add(result, bias))
    return cast(importer, result, importer.dtype(node))


def _grouped_backward(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    """The gradients of the rows and of the matrices."""
    x, weight, ends, g = (
        importer.arg(node, i, name) for i, name in enumerate(("input", "weight", "offs", "grad_output"))
    )
    turned = importer.emit(relax.op.permute_dims(weight, [0, 2, 1]))
    rows = importer.emit(own.grouped_matmul(g, turned, ends))
    return [rows, importer.emit(products_of_groups(importer.emit, x, ends, g))]


#: Converters by the name of the overload.
EXPERTS: dict[str, Converter] = {
    "_grouped_mm.default": _grouped,
    "transformers::grouped_mm_fallback.default": _grouped,
    "transformers::grouped_mm_fallback_backward.default": _grouped_backward,
}
