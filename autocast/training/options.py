"""How a training step treats gradients before it uses them."""

from __future__ import annotations

from typing import NamedTuple

from autocast.runtime import collectives
from autocast.training import loss_scaling as scaling
from autocast.training.parallel.options import DataParallel

#: What other names for options are called here.
ELSEWHERE = {
    name: f"it is {ours}"
    for name, ours in {
        "lr": "learning_rate",
        "policy": "amp",
        "dtype": "amp",
        "gradient_accumulation_steps": "accumulate",
        "accumulate_grad_batches": "accumulate",
        "zero": "parallel=DataParallel(zero=1)",
        "sync_batch_norm": "parallel=DataParallel(sync_batch_norm=True)",
    }.items()
}


class Options(NamedTuple):
    """See `training_step`."""

    clip_norm: float | None = None
    loss_scaling: scaling.LossScaling | None = None
    recompute: tuple[str, ...] = ()
    parallel: DataParallel | None = None
    accumulate: int = 1

    @property
    def shares(self) -> int:
        """Into how many parts the optimizer's state is divided, one for each process."""
        return collectives.count() if self.parallel is not None and self.parallel.zero else 1


NO_OPTIONS = Options()
