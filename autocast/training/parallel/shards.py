"""Which batches are whose: every rank takes every N-th of those that one process would take, or has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import numpy as np

from autocast.errors import InputError
from autocast.training.batches import Batch, arranged
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

    def own() -> Iterator[Batch]:
        _agree_on_order(batches, ranks)
        mine: Any = None
        place = -1
        for index, batch in enumerate(batches):
            place = index % ranks.count
            if place == ranks.rank:
                mine = batch
            if place == ranks.count - 1:
                yield mine
        if whole and ranks.rank <= place < ranks.count - 1:
            yield mine

    def length_of(length: int) -> int:
        rounds, rest = divmod(length, ranks.count)
        return rounds + (whole and rest > ranks.rank)

    return arranged(batches, own, length_of)


def is_sharded(batches: Any) -> bool:
    """Whether a DataLoader's sampler is one of torch's that divide a data set among ranks."""
    return getattr(getattr(batches, "sampler", None), "num_replicas", 1) > 1


def _agree_on_order(batches: Any, ranks: Ranks) -> None:
    """Seed torch's generator alike on all ranks, if it shuffles: else some would take what others have taken."""
    if getattr(getattr(batches, "sampler", None), "generator", batches) is None:
        import torch

        seed = ranks.same_array(np.array(int(torch.randint(2**62, ()))))
        torch.manual_seed(int(seed))
