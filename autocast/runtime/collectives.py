"""The mean of tensors over all processes of a training, in the background: what compiled training steps call.

`start` copies tensors into one, and hands that to gloo, whose threads add up those of all ranks while the caller goes
on computing. `done` waits for the sums and writes their means. Without a process group, or in one of a single process,
both only copy.
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autocast.errors import RankError

#: The packed functions, as a module calls them; `autocast.runtime.torch_calls` registers them.
START = "torch.distributed.all_reduce_start"
DONE = "torch.distributed.all_reduce_done"

#: What was begun and is not done, by the address of its memory.
_begun: dict[int, _Sum] = {}

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
        atexit.unregister(_leave)
        atexit.register(_leave)
        _groups.clear()
        backends = dist.get_backend_config(default)
        _groups[default] = default if "cpu:gloo" in str(backends) else dist.new_group(backend="gloo")
    return _groups[default]


def count() -> int:
    """How many processes there are in that group; 1 where there is none."""
    ranks = group()
    return 1 if ranks is None else int(ranks.size())


def _leave() -> None:
    """End the process group before the interpreter ends: gloo's threads still let go of tensors, which needs Python."""
    import torch.distributed as dist

    _begun.clear()
    _groups.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


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


class _Sum:
    """The sum of one buffer over all ranks, on its way; in the end the buffer holds it, or its mean.

    float32 is added up by gloo. Of bfloat16 and float16 gloo would round every partial sum, so each rank is sent its
    share of the buffer by all others, adds that up in float32, and sends the mean, rounded once, back to them.
    """

    def __init__(self, flat: Any, ranks: Any) -> None:
        import torch
        import torch.distributed as dist

        self.flat, self.ranks, self.count = flat, ranks, 1 if ranks is None else dist.get_world_size()
        self.handle: Any = None
        self.parts: Any = None
        if ranks is None:
            return
        if flat.element_size() > 2:
            self.handle = dist.all_reduce(flat, group=ranks, async_op=True)
            return
        share = -(-flat.numel() // self.count)
        padded = torch.nn.functional.pad(flat, (0, share * self.count - flat.numel()))
        self.parts = torch.empty_like(padded).view(self.count, share)
        self.handle = dist.all_to_all_single(_bytes(self.parts), _bytes(padded), group=ranks, async_op=True)

    def add_up(self) -> None:
        """Wait for the parts of this rank's share, and begin to send their mean; nothing where gloo adds up."""
        if self.parts is None:
            return
        import torch
        import torch.distributed as dist

        self.handle.wait()
        mean = self.parts.float().mean(dim=0).to(self.flat.dtype)
        self.whole, self.parts = torch.empty(self.count, len(mean), dtype=mean.dtype), None
        shares = [_bytes(share) for share in self.whole]
        self.handle = dist.all_gather(shares, _bytes(mean), group=self.ranks, async_op=True)

    def mean(self) -> Any:
        """Wait for the mean."""
        if self.handle is not None:
            self.handle.wait()
        if self.flat.element_size() > 2:
            return self.flat.div_(self.count)
        return self.flat if self.handle is None else self.whole.view(-1)[: self.flat.numel()]


def _bytes(tensor: Any) -> Any:
    import torch

    return tensor.view(-1).view(torch.uint8)


def start(*values: Any) -> None:
    """Copy all tensors but the last into the last one, bytes, and begin to add up those of all ranks."""
    import torch

    *parts, buffer = map(torch.from_dlpack, values)
    flat = buffer.view(parts[0].dtype)
    torch.cat([part.reshape(-1) for part in parts], out=flat)
    with explained("the mean over ranks"):
        _begun[buffer.data_ptr()] = _Sum(flat, group())


def done(*values: Any) -> None:
    """Wait until the sums in the first tensor are there, and write the means to the others, one after another."""
    import torch

    buffer, *results = map(torch.from_dlpack, values)
    try:
        with explained("the mean over ranks"):
            own = _begun[buffer.data_ptr()]
            for each in _begun.values() if own.parts is not None else ():  # in the order in which all ranks began them
                each.add_up()
            mean = own.mean()
    except RankError:
        _begun.clear()
        raise
    del _begun[buffer.data_ptr()]
    for part, result in zip(mean.split([result.numel() for result in results]), results, strict=True):
        result.copy_(part.view(result.shape))


#: What the packed functions run.
FUNCTIONS: dict[str, Callable[..., None]] = {START: start, DONE: done}
