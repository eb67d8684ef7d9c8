"""Which batches are whose: every rank takes every N-th of those that one process would take, or has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import numpy as np

from autocast.errors import InputError
from autocast.training.batches import Batch
from autocast.training.parallel.ranks import Ranks


def shard_of(
    batches: Iterable[Batch] | Callable[[int], Batch], ranks: Ranks
) -> Iterable[Batch] | Callable[[int], Batch]:
    """The batches that this rank trains on: one of each N that follow each other, the one of its rank.

    Of an iterable, what is left in the end, fewer than N, is not used: all ranks make the same steps. A function
    is asked for the batch of `step * N + rank`. A DataLoader whose sampler is a DistributedSampler has this rank's
    batches already.

    Raises
    ------
    InputError
        There are fewer batches than ranks.
    """
    if ranks.count == 1:
        return batches
    if callable(batches):
        draw = batches
        return lambda step: draw(step * ranks.count + ranks.rank)
    if isinstance(batches, Sized) and len(batches) < ranks.count and not is_sharded(batches):
        raise InputError(
            f"Trainer.fit: got {len(batches)} batches for {ranks.count} processes, expected one for each at least. "
            "Give more, smaller ones, or each process its own with parallel=DataParallel(shard=False)"
        )
    return _divided(batches, ranks, whole=False)


def whole_shard_of(batches: Iterable[Batch], ranks: Ranks) -> Iterable[Batch]:
    """The batches that this rank evaluates: as `shard_of` has them, and of what is left in the end one, too."""
    return batches if ranks.count == 1 else _divided(batches, ranks, whole=True)


def _divided(batches: Iterable[Batch], ranks: Ranks, *, whole: bool) -> Iterable[Batch]:
    if is_sharded(batches) or not isinstance(batches, Iterable):
        return batches
    kind = _SizedShard if isinstance(batches, Sized) else _Iteration if isinstance(batches, Iterator) else _Shard
    return kind(batches, ranks, whole)


def is_sharded(batches: Any) -> bool:
    """Whether a DataLoader's sampler is one of torch's that divide a data set among ranks."""
    return getattr(getattr(batches, "sampler", None), "num_replicas", 1) > 1


class _Shard:
    """Every N-th batch of an iterable."""

    def __init__(self, batches: Iterable[Batch], ranks: Ranks, whole: bool) -> None:
        self.batches, self.ranks, self.whole = batches, ranks, whole

    @property
    def sampler(self) -> Any:
        """The sampler of what is divided, which may want to know the epoch."""
        return getattr(self.batches, "sampler", None)

    def __iter__(self) -> Iterator[Batch]:
        self._agree_on_order()
        own: Batch | None = None
        place = -1
        for index, batch in enumerate(self.batches):
            place = index % self.ranks.count
            if place == self.ranks.rank:
                own = batch
            if place == self.ranks.count - 1:
                yield own  # type: ignore[misc]
        if self.whole and self.ranks.rank <= place < self.ranks.count - 1:
            yield own  # type: ignore[misc]

    def _agree_on_order(self) -> None:
        """Seed torch's generator alike on all ranks, if it shuffles: else some would take what others have taken."""
        if getattr(self.sampler, "generator", self) is None:
            import torch

            seed = self.ranks.same_array(np.array(int(torch.randint(2**62, ()))))
            torch.manual_seed(int(seed))


class _SizedShard(_Shard):
    """Every N-th batch of what has a length."""

    def __len__(self) -> int:
        whole, rest = divmod(len(self.batches), self.ranks.count)  # type: ignore[arg-type]
        return whole + (self.whole and rest > self.ranks.rank)


class _Iteration(_Shard):
    """Every N-th batch of what can be passed over once."""

    def __init__(self, batches: Iterable[Batch], ranks: Ranks, whole: bool) -> None:
        super().__init__(batches, ranks, whole)
        self._rest = super().__iter__()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self._rest)
