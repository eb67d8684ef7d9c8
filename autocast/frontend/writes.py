"""Whether somebody writes to the torch tensors that a model's parameters share memory with."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch


class Writes:
    """Counts the writes to tensors of torch: a call answers a number that grows with them.

    Of a tensor that is no more, those until the last call count. Writes through `tensor.data`, or through an array over
    its memory, are not seen.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        # Tensors that were made in inference mode count nothing.
        self._counts = [(weakref.ref(tensor), tensor._version) for tensor in tensors if not tensor.is_inference()]

    def __call__(self) -> int:
        """How many writes there were."""
        alive = ((reference, reference(), count) for reference, count in self._counts)
        self._counts = [(ref, count if tensor is None else tensor._version) for ref, tensor, count in alive]
        return sum(count for _, count in self._counts)
