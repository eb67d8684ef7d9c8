"""What training has reached: parameters, the optimizer's state, random state; one rank's, and whole, as checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import tvm

from autocast import vm
from autocast.errors import CheckpointError
from autocast.training import checkpoint
from autocast.training.accumulation import is_accumulator
from autocast.training.parallel.ranks import Ranks
from autocast.training.parallel.sharing import with_own_seed
from autocast.training.parallel.zero import share_of, slots_of, whole_of
from autocast.training.reached import on_host


class TrainingState:
    """The state of a compiled training step.

    Parameters
    ----------
    executable : vm.Executable
        The step.
    params : mapping of str to tensor
        The parameters of the model that is trained.
    optimizer : str
        What it is trained by: only checkpoints of the same are taken.
    ranks : Ranks
        The processes that train it.
    divided : bool
        Whether each rank has a share of the optimizer's state, not the whole.
    """

    def __init__(
        self, executable: vm.Executable, params: Mapping[str, Any], optimizer: str, ranks: Ranks, *, divided: bool
    ) -> None:
        self._executable, self._params, self._ranks = executable, params, ranks
        self._optimizer = optimizer
        self._divided = divided and ranks.count > 1

    @property
    def own(self) -> dict[str, tvm.runtime.Tensor]:
        """What this rank has, in this machine's memory, without a copy where it is there already."""
        state = self._executable.state
        return {name: on_host(tensor) for name, tensor in state.items() if not is_accumulator(name)}

    def whole(self, steps: int) -> dict[str, Any]:
        """Copies of all of it, and facts. Where it is divided all ranks have to ask for them together."""
        tensors = with_own_seed({name: tensor.numpy() for name, tensor in self.own.items()}, self._ranks)
        shared = {name: whole_of(tensors[name], like.shape, self._ranks) for name, like in self._shared.items()}
        return {"tensors": tensors | shared, "facts": self._facts(steps)}

    def load(self, whole: Mapping[str, Any]) -> int:
        """Go on from what `whole` returned; returns its steps.

        Raises
        ------
        CheckpointError
            It is another model's, or another optimizer's. Nothing has changed then.
        """
        checkpoint.check_facts(whole)
        facts = whole["facts"]
        if facts["optimizer"] != self._optimizer:
            raise CheckpointError(
                f"Trainer: the checkpoint was written with {facts['optimizer']}, expected {self._optimizer}; build "
                "the Trainer with that optimizer, or start from the checkpoint's parameters alone"
            )
        given = {name: np.asarray(tensor) for name, tensor in whole["tensors"].items()}
        checkpoint.check_fits(given, self._like())
        tensors = with_own_seed(given, self._ranks)
        self._executable.load_state(tensors | {name: share_of(tensors[name], self._ranks) for name in self._shared})
        return int(facts["steps"])

    def save(self, path: str | os.PathLike[str], steps: int) -> None:
        """Write a checkpoint: rank 0 does, and the others wait."""
        state = self.whole(steps)
        self._ranks.by_rank_0("write the checkpoint", lambda: checkpoint.save(path, **state))

    def read(self, path: str | os.PathLike[str]) -> int:
        """Go on from a checkpoint, which rank 0 reads and tells the others; returns its steps."""

        def read_here() -> tuple[Mapping[str, Any], int]:
            state = checkpoint.load(path)
            return state.tensors, self.load(state._asdict())

        like = self._like()
        tensors, steps = self._ranks.by_rank_0("read the checkpoint", read_here) or (like, 0)
        if self._ranks.count == 1:
            return steps
        steps = int(self._ranks.same_array(np.array(steps, "int64")))
        sent = {name: self._ranks.same_array(np.asarray(tensors[name])) for name in like}
        return self.load({"tensors": sent, "facts": self._facts(steps)})

    def _facts(self, steps: int) -> dict[str, Any]:
        return {"steps": steps, "optimizer": self._optimizer}

    def _like(self) -> dict[str, np.ndarray]:
        """Arrays of the names, dtypes and shapes of all of it; what other ranks have shares of is zeros."""
        return {name: self._shared[name] if name in self._shared else x.numpy() for name, x in self.own.items()}

    def forget_sums(self) -> None:
        """Forget the gradients of batches that were accumulated since the last update."""
        sums = {name: sum for name, sum in self._executable.state.items() if is_accumulator(name)}
        self._executable.load_state({name: np.zeros(tuple(sum.shape), "float32") for name, sum in sums.items()})

    @cached_property
    def _shared(self) -> dict[str, np.ndarray]:
        """What each rank has a share of: something like the whole, which takes no memory."""
        if not self._divided:
            return {}
        owners = slots_of(self.own, self._params)
        shapes = {name: tuple(map(int, self._params[owner].shape)) for name, owner in owners.items()}
        return {name: np.broadcast_to(np.zeros((), "float32"), shape) for name, shape in shapes.items()}
