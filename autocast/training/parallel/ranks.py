"""The processes that train one model: which of them this is, and what they tell each other beside gradients.

Everything that is sent is numbers, or JSON: nothing that a rank receives is code.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from autocast.errors import AutocastError, CheckpointError, RankError
from autocast.runtime.collectives import explained, group
from autocast.training.parallel.options import DataParallel

Value = TypeVar("Value")

#: Bytes of what a rank says of itself.
_FACTS = 16384

#: Characters of each fact, the rest of which a digest stands for.
_FACT = 400


def ranks_of(parallel: DataParallel | str | None) -> DataParallel | str | None:
    """What None stands for: "data" where torchrun, or another, started several processes together; else as it was."""
    if parallel is None and (int(os.environ.get("WORLD_SIZE") or 1) > 1 or group() is not None):
        return "data"
    return parallel


@dataclass(frozen=True)
class Ranks:
    """The processes that train together, as this one sees them; all call the same methods in the same order.

    Attributes
    ----------
    rank : int
        Which of them this is, from 0.
    count : int
        How many there are; with one, nothing is sent.
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def connected(cls) -> Ranks:
        """Those of torch's default process group, which is made of what torchrun says where there is none.

        Raises
        ------
        RankError
            They do not find each other, or there is nothing that says who they are.
        """
        import torch.distributed as dist

        if dist.is_available() and not dist.is_initialized() and int(os.environ.get("WORLD_SIZE") or 1) > 1:
            try:
                _join()
            except (ValueError, RuntimeError) as error:
                raise RankError(
                    f"Trainer: WORLD_SIZE is {os.environ['WORLD_SIZE']}, and the processes do not find each other: "
                    f"{error}. Expected RANK, MASTER_ADDR and MASTER_PORT of one that answers, as torchrun sets them: "
                    "torchrun --nproc-per-node 2 train.py"
                ) from error
        if group() is None:
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    def check_alike(self, facts: Mapping[str, object]) -> None:
        """RankError, on every rank, unless all of them say the same: versions, model, options."""
        if self.count == 1:
            return
        own = {name: _shortened(str(fact)) for name, fact in facts.items()}
        text = json.dumps(own).encode()
        if len(text) > _FACTS:
            text = json.dumps({"all": _shortened(text.decode())}).encode()
        everyone = self.gathered(np.frombuffer(text.ljust(_FACTS), "uint8"))
        said = [json.loads(bytes(row)) for row in everyone]
        differing = [
            f"{name}: rank 0 has {said[0].get(name)}, rank {rank} {other.get(name)}"
            for rank, other in enumerate(said)
            for name in sorted({*said[0], *other})
            if other.get(name) != said[0].get(name)
        ]
        if differing:
            more = f", and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise RankError(
                f"Trainer: the {self.count} processes were not started alike: {'; '.join(differing[:3])}{more}. "
                "Expected the same program, with the same versions and options, in all of them: only data differs by "
                "rank"
            )

    def same_params(self, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The tensors that rank 0 has under these names; all ranks have such tensors."""
        return {name: self.same_array(tensor.numpy()) for name, tensor in params.items()}

    def same_array(self, array: np.ndarray) -> np.ndarray:
        """The array of rank 0; all ranks have one of the shape and dtype."""
        return array if self.count == 1 else self._from_0(array)

    def by_rank_0(self, what: str, work: Callable[[], Value]) -> Value | None:
        """What `work` returns on rank 0; None on the others, which wait for it.

        Raises
        ------
        CheckpointError
            On the other ranks, where `work` raised an error on rank 0, which raises that error.
        """
        result, error = None, None
        if self.rank == 0:
            try:
                result = work()
            except (AutocastError, OSError) as raised:
                error = raised
        went_well = bool(self.same_array(np.array(error is None, "uint8")))
        if error is not None:
            raise error
        if not went_well:
            raise CheckpointError(
                f"Trainer: rank {self.rank} of {self.count}: rank 0 could not {what}; expected it to, and its own "
                "error says why. All ranks go on from what rank 0 has"
            )
        return result

    def summed(self, numbers: Sequence[float]) -> list[float]:
        """The sum over all ranks of each number, in float64."""
        if self.count == 1:
            return list(numbers)
        return [float(total) for total in self.gathered(np.array(numbers, "float64")).sum(axis=0)]

    def gathered(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all ranks, of one shape and dtype, stacked."""
        import torch
        import torch.distributed as dist

        own = torch.from_numpy(np.array(array))
        everyone = [torch.empty_like(own) for _ in range(self.count)]
        with explained("the exchange of what the ranks have"):
            dist.all_gather(everyone, own, group=group())
        return np.stack([part.numpy() for part in everyone])

    def _from_0(self, array: np.ndarray) -> np.ndarray:
        import torch
        import torch.distributed as dist

        copy = np.array(array, order="C")
        with explained("the copy of what rank 0 has"):
            dist.broadcast(torch.from_numpy(copy.reshape(-1).view("uint8")), 0, group=group())
        return copy


def _join() -> None:
    """Make the default process group of what torchrun says.

    torchrun keeps one store for all starts of the processes of one machine, in which gloo would find the addresses of
    those that have died: each start has names of its own there. On several machines starts are counted apart.
    """
    import torch.distributed as dist

    store, rank, count = next(dist.rendezvous("env://"))
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        store = dist.PrefixStore(f"start_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count)


def _shortened(text: str) -> str:
    if len(text) <= _FACT:
        return text
    return f"{text[:_FACT]}... ({hashlib.sha256(text.encode()).hexdigest()[:16]})"
