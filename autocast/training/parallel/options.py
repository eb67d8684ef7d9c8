"""How several processes train one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autocast.errors import TrainingError
from autocast.messages import check_option, is_number, is_whole, named_options, shown
from autocast.policy import Policy

#: What to do instead of passing what torch calls its options.
_ELSEWHERE = {
    "bucket_cap_mb": "it is bucket_mib",
    "process_group": "all processes train; start others than those, or torch.distributed.init_process_group yourself",
}


@named_options(TrainingError, _ELSEWHERE, "its options have names, such as bucket_mib=25")
@dataclass(frozen=True)
class DataParallel:
    """Every process trains the whole model on its share of the batches; gradients are averaged over all of them.

    Attributes
    ----------
    bucket_mib : float
        Gradients are sent together that have at least this many MiB (float32); the last ones as they are. 25 as in
        torch's DistributedDataParallel.
    shard : bool
        Whether `fit` and `evaluate` take every N-th batch, beginning with the one of this process's rank; False where
        the batches that they are given are this process's own. Those of a DataLoader with a DistributedSampler are.
    sync_batch_norm : bool
        Whether BatchNorm normalizes by the batches of all processes together; else each by its own.
    zero : int
        1: each process has a share of the optimizer's state, updates that share of every parameter, and sends it to the
        others. 0: each has all of it.

    Raises
    ------
    TrainingError
        An option is out of range.
    """

    bucket_mib: float = 25.0
    shard: bool = True
    sync_batch_norm: bool = False
    zero: int = 0

    def __post_init__(self) -> None:
        check_option(self, "bucket_mib", lambda size: is_number(size) and size > 0, TrainingError, "MiB above 0")
        for flag in ("shard", "sync_batch_norm"):
            check_option(self, flag, lambda value: isinstance(value, bool), TrainingError, "True or False")
        legal = "0 or 1; gradients and parameters are not divided, as stages 2 and 3 do"
        check_option(self, "zero", lambda stage: is_whole(stage) and stage in (0, 1), TrainingError, legal)


def parse(parallel: Any) -> DataParallel | None:
    """The options that `parallel` stands for: "data" for all defaults, "none" and None for one process by itself.

    Raises
    ------
    TrainingError
        It is something else.
    """
    if parallel is None or isinstance(parallel, DataParallel):
        return parallel
    if isinstance(parallel, str) and parallel in ("data", "none"):
        return DataParallel() if parallel == "data" else None
    raise TrainingError(
        f"parallel is {shown(parallel)}, expected 'data', 'none', DataParallel(bucket_mib=25), or None: 'data' where "
        "several processes were started together"
    )


def check_place(options: DataParallel | None, processes: int, device: str, policy: Policy | None) -> None:
    """TrainingError where several processes would train on a device, or with a policy, that nobody has tried."""
    if device not in ("cpu", "torch:cpu"):
        raise TrainingError(
            f"Trainer: {processes} processes train on the device {device!r}, expected 'cpu' or 'torch:cpu': that is "
            "what means over processes were tried on. Train in one process (parallel='none')"
        )
    if options is None or not options.zero:
        return
    if device != "cpu":
        raise TrainingError(
            f"Trainer: zero=1 on the device {device!r}, expected 'cpu': shares are sent by gloo between our kernels. "
            "Leave zero out"
        )
    if policy is not None and not policy.fp32_params:
        raise TrainingError(
            "Trainer: zero=1 and a policy with fp32_params=False, expected masters in float32: shares of those are "
            "updated and sent. Leave one of them out"
        )
