"""Converters of what a mask selects, `nonzero`, `x[mask]` and `masked_select`: how many it are is found at run time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from tvm import relax

from autocast.frontend.converters.helpers import dims
from autocast.frontend.importing.importer import Importer
from autocast.ir import dtype_of

op = relax.op


def without_masks(
    importer: Importer, node: fx.Node, x: relax.Expr, indices: list[relax.Expr | None]
) -> tuple[relax.Expr, list[relax.Expr | None]]:
    """A tensor and indices that select what `indices` do of `x`: a mask's axes are one, and it is places on that.

    `node` computes what they select.
    """
    masks = {at for at, index in enumerate(indices) if index is not None and dtype_of(index) == "bool"}
    if not masks:
        return x, indices
    given = [at for at, index in enumerate(indices) if index is not None]
    rank = max(1 if at in masks else len(dims(indices[at])) for at in given)
    together = given == list(range(given[0], given[-1] + 1))
    size = node.meta["val"].shape[rank - 1 + (given[0] if together else 0)]
    left, extents, found = list(dims(x)), [], []
    for at, index in enumerate(indices):
        covered = len(dims(index)) if at in masks else 1
        extents.append(math.prod(left[:covered]))
        found.append(_places(importer, node, index, size) if at in masks else index)
        left = left[covered:]
    return importer.emit(op.reshape(x, [*extents, *left])), found


def _places(importer: Importer, node: fx.Node, mask: relax.Expr, size: int | torch.SymInt) -> relax.Expr:
    """Where a mask is true, counted through all of it: as many places as torch calls `size`."""
    flat = importer.emit(op.reshape(mask, [math.prod(dims(mask))]))
    return importer.emit(op.reshape(_found(importer, node, flat, [1, size]), [importer.dim(size)]))


def _found(importer: Importer, node: fx.Node, x: relax.Expr, sizes: list[int | torch.SymInt]) -> relax.Expr:
    """The places of what is not 0, a row for each axis of `x`, in the sizes that torch calls them."""

    def ty() -> relax.TensorType:
        return relax.TensorType([importer.dim(size) for size in sizes], "int64")

    return importer.found.match_tensor(importer.block_builder, node, importer.emit(op.nonzero(x)), sizes, ty)


def _nonzero(importer: Importer, node: fx.Node) -> relax.Expr:
    """A row for each place; those of a scalar are empty."""
    x, (count, rank) = importer.arg(node, 0, "self"), node.meta["val"].shape
    if rank == 0:
        _found(importer, node, importer.emit(op.reshape(x, [1])), [1, count])
        return importer.emit(op.zeros([importer.dim(count), 0], "int64"))
    return importer.emit(op.permute_dims(_found(importer, node, x, [rank, count]), [1, 0]))


def _masked_select(importer: Importer, node: fx.Node) -> relax.Expr:
    """Of both in the shape that both can have."""
    common = torch.broadcast_shapes(*(node.args[i].meta["val"].shape for i in (0, 1)))
    shape = [importer.dim(size) for size in common]
    x, mask = (importer.emit(op.broadcast_to(importer.arg(node, i, ""), shape)) for i in (0, 1))
    places = _places(importer, node, mask, node.meta["val"].shape[0])
    return importer.emit(op.take(importer.emit(op.reshape(x, [math.prod(shape)])), places, axis=0))


MASKS: dict[str, Callable[[Importer, fx.Node], Any]] = {
    "masked_select.default": _masked_select,
    "nonzero.default": _nonzero,
}
