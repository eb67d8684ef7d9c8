"""Converters of bags of embeddings: rows of a table that are added, averaged or compared by bags."""

from __future__ import annotations

import numpy as np
import torch
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.functions import wide
from autocast.frontend.helpers import Converter, cast, dims
from autocast.frontend.importer import Importer
from autocast.ir import dtype_of

op = relax.op

#: torch's numbers of what is made of the rows of a bag.
_MEAN, _MAX = 1, 2


def _embedding_bag(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    """The first of torch's four results: by bag, its rows reduced; 0 where there are none."""
    weight, indices, weights = (importer.arg(node, i, "") for i in (0, 1, 6))
    mode, padding = int(importer.arg(node, 4, "mode", 0)), int(importer.arg(node, 8, "padding_idx", -1))
    if importer.arg(node, 3, "scale_grad_by_freq", False):
        raise ImportModelError("gradients that are divided by how often an index occurs")
    (bags, width), dtype = importer.type_of(node.meta["val"][0])
    if dims(indices) == (0,):
        return [importer.emit(op.zeros([bags, width], dtype))]
    rows = cast(importer, importer.emit(op.take(weight, indices, axis=0, mode="clip")), wide(dtype))
    if weights is not None:
        rows = importer.emit(op.multiply(rows, op.expand_dims(cast(importer, weights, wide(dtype)), -1)))
    counted = importer.emit(op.ones([dims(indices)[0], 1], wide(dtype)))
    if padding >= 0:
        number = relax.const(padding, dtype_of(indices))
        counted = importer.emit(op.expand_dims(op.astype(op.not_equal(indices, number), wide(dtype)), -1))
    inside, zero = op.greater(counted, relax.const(0, wide(dtype))), relax.const(0, wide(dtype))
    rows = importer.emit(op.where(inside, rows, relax.const(float("-inf"), wide(dtype)) if mode == _MAX else zero))
    reduced = _by_bags(importer, node, rows, bags, "max" if mode == _MAX else "add")
    if mode in (_MEAN, _MAX):
        count = _by_bags(importer, node, counted, bags, "add")
        if mode == _MEAN:
            reduced = importer.emit(op.divide(reduced, op.maximum(count, relax.const(1, wide(dtype)))))
        else:
            reduced = importer.emit(op.where(op.greater(count, zero), reduced, zero))
    return [cast(importer, reduced, dtype)]


def _by_bags(importer: Importer, node: fx.Node, rows: relax.Expr, bags: int, reduction: str) -> relax.Expr:
    """Rows, reduced by bags: those of one length, which is known, are an axis."""
    count, width = dims(rows)
    offsets = importer.constants.get(node.args[2])
    if isinstance(count, int) and offsets is not None and count % bags == 0:
        length = count // bags
        if torch.equal(offsets[:bags].long(), torch.arange(bags) * length):
            apart = importer.emit(op.reshape(rows, [bags, length, width]))
            return importer.emit((op.max if reduction == "max" else op.sum)(apart, 1))
    if importer.training and reduction == "max":
        raise ImportModelError("the reduction 'max' has no gradient here")
    begins = importer.arg(node, 2, "offsets")
    begins, places = cast(importer, begins, "int64"), op.arange(0, count, 1, "int64")
    place = relax.const(np.arange(count), "int64") if isinstance(count, int) else importer.emit(places)
    after = importer.emit(op.bucketize(place, begins, False, True))  # how many bags have begun
    bag = importer.emit(op.expand_dims(op.subtract(after, relax.const(1, "int64")), -1))
    first = relax.const(float("-inf") if reduction == "max" else 0, dtype_of(rows))
    kept = importer.emit(op.broadcast_to(first, [dims(begins)[0], width]))
    index = importer.emit(op.broadcast_to(bag, dims(rows)))
    result = importer.emit(op.scatter_elements(kept, index, rows, 0, reduction))
    return importer.emit(op.strided_slice(result, [0], [0], [bags], assume_inbound=True))


#: Converters by the name of the overload.
EMBEDDING_BAGS: dict[str, Converter] = {
    "_embedding_bag.default": _embedding_bag,
    "_embedding_bag_forward_only.default": _embedding_bag,
}
