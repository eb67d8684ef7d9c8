"""Converters of bags of embeddings: rows of a table that are added, averaged or compared by bags."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.functions import wide
from autocast.frontend.converters.helpers import Converter, cast, dims
from autocast.frontend.importing.importer import Importer
from autocast.ir import Place, dtype_of

op = relax.op

#: torch's numbers of what is made of the rows of a bag.
_MEAN, _MAX = 1, 2


def _embedding_bag(importer: Importer, node: fx.Node) -> list[relax.Expr]:
    """By bag, its rows reduced, 0 where there are none; then what torch's own gradients read.

    Of that ours read the rows that are the largest, whose numbers are known where bags are compared; the rest are 0.
    """
    weight, indices, weights = (importer.arg(node, i, "") for i in (0, 1, 6))
    mode, padding = int(importer.arg(node, 4, "mode", 0)), int(importer.arg(node, 8, "padding_idx", -1))
    differentiates = importer.training or any(user.args[1] != 0 for user in node.users)
    if differentiates and importer.arg(node, 3, "scale_grad_by_freq", False):
        raise ImportModelError("gradients that are divided by how often an index occurs")
    if differentiates and importer.arg(node, 5, "sparse", False):
        raise ImportModelError("sparse gradients")
    (bags, _), dtype = importer.type_of(node.meta["val"][0])
    results = [importer.emit(op.zeros(*importer.type_of(value))) for value in node.meta["val"]]
    if dims(indices) == (0,):
        return results
    rows = cast(importer, importer.emit(op.take(weight, indices, axis=0, mode="clip")), wide(dtype))
    if weights is not None:
        rows = importer.emit(op.multiply(rows, op.expand_dims(cast(importer, weights, wide(dtype)), -1)))
    counted = importer.emit(op.ones([dims(indices)[0], 1], wide(dtype)))
    if padding >= 0:
        number = relax.const(padding, dtype_of(indices))
        counted = importer.emit(op.expand_dims(op.astype(op.not_equal(indices, number), wide(dtype)), -1))
    inside, zero = op.greater(counted, relax.const(0, wide(dtype))), relax.const(0, wide(dtype))
    rows = importer.emit(op.where(inside, rows, relax.const(float("-inf"), wide(dtype)) if mode == _MAX else zero))
    by_bags = _Bags(importer, node, dims(indices)[0], bags)
    if mode != _MAX:
        reduced = by_bags.summed(rows)
    if mode in (_MEAN, _MAX):
        count = by_bags.summed(counted)
    if mode == _MEAN:
        reduced = importer.emit(op.divide(reduced, op.maximum(count, relax.const(1, wide(dtype)))))
    if mode == _MAX:
        is_any = importer.emit(op.greater(count, zero))
        places = by_bags.largest(rows)
        reduced = importer.emit(op.where(is_any, importer.emit(op.gather_elements(rows, places, 0)), zero))
        numbers = importer.emit(op.take(indices, places, axis=0, mode="clip"))
        none = relax.const(-1, dtype_of(indices))
        largest = importer.emit(op.where(is_any, numbers, none))
        results[3] = cast(importer, largest, str(dtype_of(results[3])))
    return [cast(importer, reduced, dtype), *results[1:]]


class _Bags:
    """Reduces what there is of each index by bags: those of one length, which is known, are an axis."""

    def __init__(self, importer: Importer, node: fx.Node, count: Any, bags: Any) -> None:
        self.importer, self.count, self.bags = importer, count, bags
        self.length: int | None = None
        offsets = importer.constants.get(node.args[2])
        if isinstance(count, int) and offsets is not None and count % bags == 0:
            length = count // bags
            if torch.equal(offsets[:bags].long(), torch.arange(bags) * length):
                self.length = length
                return
        begins = cast(importer, importer.arg(node, 2, "offsets"), "int64")
        self.begins = dims(begins)[0]
        after = importer.emit(op.bucketize(self._numbers(), begins, False, True))  # how many bags have begun
        self.bag = importer.emit(op.expand_dims(op.subtract(after, relax.const(1, "int64")), -1))

    def summed(self, rows: relax.Expr) -> relax.Expr:
        """The sums of rows."""
        if self.length is not None:
            return self.importer.emit(op.sum(self._apart(rows), 1))
        return self._scattered(rows, 0, "add")

    def largest(self, rows: relax.Expr) -> relax.Expr:
        """For each column the place of the first of a bag's largest elements; any where there is none."""
        importer, width = self.importer, dims(rows)[1]
        if self.length is not None:
            within = importer.emit(op.argmax(self._apart(rows), 1))
            begins = relax.const((np.arange(self.bags) * self.length)[:, None], "int64")
            return importer.emit(op.add(within, begins))
        place = importer.block_builder.place or Place()
        exact = place._replace(region=place.region or "float32")  # elements are compared with extremes
        importer.block_builder.place = exact
        extremes = self._scattered(rows, float("-inf"), "max", whole=True)
        found = importer.emit(op.gather_elements(extremes, op.broadcast_to(self.bag, dims(rows)), 0))
        last = importer.number(self.count, "int64")
        numbers = importer.emit(op.expand_dims(self._numbers(), -1))
        hits = importer.emit(op.where(op.equal(rows, found), op.broadcast_to(numbers, [self.count, width]), last))
        first = self._scattered(hits, 0, "min", start=last)
        importer.block_builder.place = place
        return importer.emit(op.minimum(first, op.subtract(last, relax.const(1, "int64"))))

    def _numbers(self) -> relax.Expr:
        if isinstance(self.count, int):
            return relax.const(np.arange(self.count), "int64")
        return self.importer.emit(op.arange(0, self.count, 1, "int64"))

    def _apart(self, rows: relax.Expr) -> relax.Expr:
        return self.importer.emit(op.reshape(rows, [self.bags, self.length, dims(rows)[1]]))

    def _scattered(
        self,
        rows: relax.Expr,
        first: float,
        reduction: str,
        *,
        start: relax.Expr | None = None,
        whole: bool = False,
    ) -> relax.Expr:
        """Rows reduced from `first` or `start` on, of all bags that have begun if they are wanted whole."""
        importer, width = self.importer, dims(rows)[1]
        begin = relax.const(first, dtype_of(rows)) if start is None else start
        kept = importer.emit(op.broadcast_to(begin, [self.begins, width]))
        index = importer.emit(op.broadcast_to(self.bag, dims(rows)))
        result = importer.emit(op.scatter_elements(kept, index, rows, 0, reduction))
        return result if whole else importer.emit(op.strided_slice(result, [0], [0], [self.bags], assume_inbound=True))


#: Converters by the name of the overload.
EMBEDDING_BAGS: dict[str, Converter] = {
    "_embedding_bag.default": _embedding_bag,
    "_embedding_bag_forward_only.default": _embedding_bag,
}
