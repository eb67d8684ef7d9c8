"""How several processes train one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autocast.errors import TrainingError
from autocast.messages import check_option, is_number, is_whole, named_options, shown

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
