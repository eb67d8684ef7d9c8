"""The mean of tensors over all processes of a training, in the background: what compiled training steps call.

`start` copies tensors into one, and hands that to gloo, whose threads add up those of all ranks while the caller goes
on computing. `done` waits for the sums and writes their means. Without a process group, or in one of a single process,
both only copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autocast.errors import RankError

#: The packed functions, as a module calls them; `autocast.runtime.torch_calls` registers them.
START = "torch.distributed.all_reduce_start"
DONE = "torch.distributed.all_reduce_done"

#: What was begun and is not done, by the address of its memory: torch's handle.
_begun: dict[int, Any] = {}

#: A group of gloo for each default group that has no such backend: processes that train on CPUs beside GPUs.
_groups: dict[Any, Any] = {}


def group() -> Any:
    """The process group that tensors on the CPU are sent in; None where there is none, or one of one process.

    Where the default group's backend is not gloo, all ranks have to ask for it together the first time.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    default = dist.group.WORLD
    if default not in _groups:
        _groups.clear()
        backends = dist.get_backend_config(default)
        _groups[default] = default if "cpu:gloo" in str(backends) else dist.new_group(backend="gloo")
    return _groups[default]


@contextmanager
def explained(what: str) -> Iterator[None]:
    """A RankError, which says who failed at what, in the place of those that torch raises where a rank is missing."""
    import torch.distributed as dist

    try:
        yield
    except RuntimeError as error:
        raise RankError(
            f"rank {dist.get_rank()} of {dist.get_world_size()}: {what} failed: {_reason(error)}. Expected every "
            "rank to take part: one has died, which its own output tells, or it made fewer steps, or takes longer than "
            "the timeout of the process group. Start all of them again, from a checkpoint: Trainer.fit(..., save_to="
            '"run.safetensors") goes on from the last one, and torchrun --max-restarts does it by itself'
        ) from error


def _reason(error: RuntimeError) -> str:
    """What gloo says happened, without the place in its source, and without its advice."""
    text = re.sub(r"^\s*\[[^]]*\]\s*", "", str(error))
    return re.split(r"\. |\n", text, maxsplit=1)[0].strip().rstrip(".") or type(error).__name__


def start(*values: Any) -> None:
    """Copy all tensors but the last into the last one, and begin to add up those of all ranks, in its memory."""
    import torch
    import torch.distributed as dist

    *parts, flat = map(torch.from_dlpack, values)
    torch.cat([part.reshape(-1) for part in parts], out=flat)
    ranks = group()
    if ranks is not None:
        with explained("the mean over ranks"):
            _begun[flat.data_ptr()] = dist.all_reduce(flat, group=ranks, async_op=True)


def done(*values: Any) -> None:
    """Wait until the sums in the first tensor are there, and write the means to the others, one after another."""
    import torch
    import torch.distributed as dist

    flat, *results = map(torch.from_dlpack, values)
    handle = _begun.pop(flat.data_ptr(), None)
    count = 1
    if handle is not None:
        with explained("the mean over ranks"):
            handle.wait()
        count = dist.get_world_size()
    for part, result in zip(flat.split([result.numel() for result in results]), results, strict=True):
        torch.div(part.view(result.shape), count, out=result)


#: What the packed functions run.
FUNCTIONS: dict[str, Callable[..., None]] = {START: start, DONE: done}
