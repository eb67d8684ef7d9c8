"""Results that share memory in torch do so here: behind a break of the graph, a program writes into one, reads another.

Such are `y`, `a` and `b` of `y = x * 2` and `a, b = y.chunk(2)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from autocast.runtime.tensors import memory_of

#: What a size is that may vary, as a number.
_Number = Callable[[Any], int]


@dataclass(frozen=True)
class _Place:
    """Where in its memory a tensor lies, as torch traced it: what is counted in elements may vary."""

    traced: torch.Tensor

    def start(self, number: _Number) -> int:
        """The first byte."""
        return number(self.traced.storage_offset()) * self.traced.itemsize

    def end(self, number: _Number) -> int:
        """The byte behind the last, of a tensor that has elements."""
        steps = zip(self.traced.shape, self.traced.stride(), strict=True)
        last = sum((number(size) - 1) * number(stride) for size, stride in steps)
        return self.start(number) + (last + 1) * self.traced.itemsize

    def view(self, memory: torch.Tensor, start: int, number: _Number) -> torch.Tensor:
        """The tensor that starts at this byte of memory."""
        sizes, strides = list(map(number, self.traced.shape)), list(map(number, self.traced.stride()))
        view = _numbers(memory, self.traced.dtype).as_strided(sizes, strides, start // self.traced.itemsize)
        view = view.conj() if self.traced.is_conj() else view
        return torch._neg_view(view) if self.traced.is_neg() else view


def _numbers(memory: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """All of the memory in which a tensor lies, along one axis: a view, which counts what is written as torch does."""
    memory = memory.conj() if memory.is_conj() else memory
    memory = torch._neg_view(memory) if memory.is_neg() else memory
    wider = max(memory.itemsize, dtype.itemsize)
    count = memory.untyped_storage().nbytes() // wider * (wider // memory.itemsize)
    whole = memory.as_strided([count], [1], 0)
    return whole if memory.dtype == dtype else whole.view(dtype)


class Sharing:
    """Which results lie in the memory of an input or of one another.

    Parameters
    ----------
    inputs, results : mapping of int to torch.Tensor
        As torch traced them, by position.

    Attributes
    ----------
    owners : dict of int to int
        The input in whose memory a result lies.
    """

    def __init__(self, inputs: Mapping[int, torch.Tensor], results: Mapping[int, torch.Tensor]) -> None:
        memories = {memory_of(value): position for position, value in inputs.items()}
        self._inputs = {position: _Place(value) for position, value in inputs.items()}
        self._results = {position: _Place(value) for position, value in results.items()}
        self.owners: dict[int, int] = {}
        groups: dict[int, list[int]] = {}
        for position, value in results.items():
            memory = memory_of(value)
            if memory in memories:
                self.owners[position] = memories[memory]
            else:
                groups.setdefault(memory, []).append(position)
        self._groups = [group for group in groups.values() if len(group) > 1]

    @property
    def symbols(self) -> set[str]:
        """The names of the sizes by which results lie in inputs."""
        traced = [self._results[position].traced for position in self.owners]
        numbers = [number for x in traced for number in (*x.shape, *x.stride(), x.storage_offset())]
        return {str(s) for n in numbers if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols}

    def sizes(self, results: Mapping[int, torch.Tensor]) -> dict[Any, int]:
        """What the sizes of computed results are, by torch's expressions of them."""
        found: dict[Any, int] = {}
        for position, place in self._results.items():
            if position in results:
                pairs = zip(place.traced.shape, results[position].shape, strict=True)
                found |= {size.node.expr: known for size, known in pairs if isinstance(size, torch.SymInt)}
        return found

    def __bool__(self) -> bool:
        return bool(self.owners or self._groups)

    def view(self, position: int, owner: torch.Tensor, number: _Number) -> torch.Tensor:
        """A result in the memory of an input."""
        place = self._results[position]
        moved = owner.storage_offset() * owner.itemsize - self._inputs[self.owners[position]].start(number)
        return place.view(owner, moved + place.start(number), number)

    def share(self, results: dict[int, torch.Tensor], number: _Number) -> None:
        """Move results to memory that they share."""
        for group in self._groups:
            places = {position: self._results[position] for position in group if results[position].numel()}
            memory = torch.empty(max((place.end(number) for place in places.values()), default=0), dtype=torch.uint8)
            for position, place in places.items():
                view = place.view(memory, place.start(number), number)
                once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in view.stride())
                view[once].copy_(results[position][once])
                results[position] = view
