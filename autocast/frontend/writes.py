"""Whether somebody writes to the torch tensors that a model's parameters share memory with."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

#: Bytes of each sample: as a rule four numbers.
_SAMPLE = 16


class Writes:
    """Counts the writes to tensors of torch: a call answers a number that grows with them.

    torch counts its own, and optimizers' fused steps by the help of this module. Writes through `tensor.data`, or
    through an array over its memory, are seen where they change a sample of the numbers. A tensor that is given other
    memory (`tensor.data = ...`) has no part in the model from then on.

    Parameters
    ----------
    tensors
        Those that are looked at.
    repeat : callable, optional
        Has copies be what the tensors are: a call does so where these were written.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], repeat: Callable[[], None] | None = None) -> None:
        #: Of the same memory, with the same count.
        self._tensors = [tensor.detach() for tensor in tensors]
        self._counted = [tensor for tensor in self._tensors if not tensor.is_inference()]
        self._uncounted = 0
        self._sample()
        self._repeat, self._repeated = repeat, self._count()

    def _sample(self) -> None:
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]
        self._samples = Samples(self._tensors)
        self._seen = self._samples()

    def __call__(self) -> int:
        """How many writes there were."""
        if self._addresses != [tensor.data_ptr() for tensor in self._tensors]:  # somebody took the memory
            self._sample()
        elif (seen := self._samples()) != self._seen:
            self._uncounted, self._seen = self._uncounted + 1, seen
        count = self._count()
        if self._repeat and count != self._repeated:
            self._repeat()
            self._repeated = count
        return count

    def _count(self) -> int:
        return self._uncounted + sum(tensor._version for tensor in self._counted)


class Samples:
    """A few bytes of each tensor, in the middle and at the end: what changes where somebody trains or averages it.

    Parameters
    ----------
    tensors
        Those on this machine's CPU are looked at. A call is legal while they are at the addresses that they have now.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._views: list[Any] = [view for tensor in tensors for view in _views(tensor)]

    def __call__(self) -> bytes:
        """The bytes that are there now."""
        return b"".join(self._views)


def _views(tensor: torch.Tensor) -> Iterator[memoryview]:
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and tensor.layout is torch.strided
    if not is_plain or not tensor.is_cpu or not tensor.numel():
        return
    size = tensor.numel() * tensor.itemsize if tensor.is_contiguous() else tensor.itemsize
    sample = min(size, _SAMPLE)
    for begin in {(size - sample) // 2, size - sample}:
        yield memoryview((ctypes.c_char * sample).from_address(tensor.data_ptr() + begin))


def _count_fused(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Count a step of an optimizer with `fused=True` as a write to its parameters, as torch counts those of others."""
    for group in optimizer.param_groups:
        if group.get("fused"):
            torch.autograd.graph.increment_version([one for one in group["params"] if not one.is_inference()])


register_optimizer_step_post_hook(_count_fused)
