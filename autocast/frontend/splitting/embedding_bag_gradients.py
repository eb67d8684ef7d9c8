"""Gradients of bags of embeddings, as AOTAutograd writes them, split by formulas of ours.

They read offsets alone: which bag each index is in, and how many are in each, is computed again, not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten

#: torch's numbers of what is made of the rows of a bag.
_MEAN, _MAX = 1, 2


def _bags(indices: Tensor, offsets: Tensor, bags: int, padding: int) -> tuple[Tensor, Tensor]:
    """The bag of each index, and whether the index counts: those of padding, and after the last bag, do not."""
    begun = torch.bucketize(torch.arange(indices.shape[0]), offsets.long(), right=True)
    counts = begun <= bags
    return (begun - 1).clamp(max=bags - 1), counts & (indices != padding) if padding >= 0 else counts


def _of_table(
    adjoint: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bag_of: Tensor,
    sizes: Tensor,
    largest: Tensor,
    count: int,
    by_frequency: bool,
    mode: int,
    sparse: bool,
    weights: Tensor | None,
    padding: int = -1,
) -> Any:
    """The adjoint of the table: each of its rows gets those of the bags that it is in."""
    if sparse or by_frequency:
        return NotImplemented
    if mode == _MAX:
        chosen = torch.where(largest >= 0, adjoint, 0.0)
        zeros = torch.zeros(count, adjoint.shape[1], dtype=adjoint.dtype)
        return zeros.scatter_add(0, largest.long().clamp(min=0), chosen)
    bag, counted = _bags(indices, offsets, adjoint.shape[0], padding)
    rows = torch.where(counted.unsqueeze(-1), adjoint[bag], 0.0)
    if weights is not None:
        rows = rows * weights.unsqueeze(-1)
    if mode == _MEAN:
        ones = counted.to(adjoint.dtype)
        size = torch.zeros(adjoint.shape[0], dtype=adjoint.dtype).index_add(0, bag, ones)
        rows = rows / size[bag].clamp(min=1).unsqueeze(-1)
    return aten.embedding_dense_backward(rows, indices, count, -1, False)


def _of_weights(
    adjoint: Tensor, table: Tensor, indices: Tensor, offsets: Tensor, bag_of: Tensor, mode: int, padding: int = -1
) -> Tensor:
    """The adjoint of the weight of each index: the product of its row and that of its bag."""
    bag, counted = _bags(indices, offsets, adjoint.shape[0], padding)
    return torch.where(counted, (adjoint[bag] * table[indices]).sum(-1), 0.0)


#: How they are split.
EMBEDDING_BAG_GRADIENTS: dict[OpOverload, Callable[..., Any]] = {
    aten._embedding_bag_backward.default: _of_table,
    aten._embedding_bag_per_sample_weights_backward.default: _of_weights,
}
