"""The mean of tensors over all processes of a training, in the background: what compiled training steps call.

`start` copies tensors into one buffer, and hands that to gloo, whose threads add up those of all ranks while the caller
goes on computing. `done` waits for the sums in the buffer, and says what to multiply them by. Without a process group,
or in one of a single process, that is 1.
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from autocast.errors import RankError

#: The packed functions, as a module calls them; `autocast.runtime.torch_calls` registers them.
START = "torch.distributed.all_reduce_start"
DONE = "torch.distributed.all_reduce_done"
COPY = "torch.distributed.all_reduce_copy"

#: Each tensor in a buffer begins at a multiple of so many elements: 64 bytes of 16 bits, as kernels expect.
_APART = 32

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


def places(sizes: Iterable[int]) -> list[int]:
    """Where tensors of so many elements begin in a buffer, counted in elements, and in the end where it ends."""
    return [0, *accumulate(-(-size // _APART) * _APART for size in sizes)]


def mean_of_rows(rows: Any) -> Any:
    """The mean of a matrix's rows, float32: row by row, as torch takes five times as long for `rows.mean(0)`."""
    first, *others = rows
    total = first.float() if first.element_size() == 2 else first.clone()
    for row in others:
        total += row
    return total.div_(len(rows))


class _Sum:
    """The sum of one buffer over all ranks, on its way.

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
        missing = -flat.numel() % self.count
        self.flat = torch.nn.functional.pad(flat, (0, missing)) if missing else flat
        self.parts = torch.empty_like(self.flat).view(self.count, -1)
        self.handle = dist.all_to_all_single(_bytes(self.parts), _bytes(self.flat), group=ranks, async_op=True)

    def add_up(self) -> None:
        """Wait for the parts of this rank's share, and begin to send their mean; nothing where gloo adds up."""
        if self.parts is None:
            return
        import torch.distributed as dist

        self.handle.wait()
        mean = mean_of_rows(self.parts).to(self.flat.dtype)
        self.parts = None
        shares = [_bytes(share) for share in self.flat.view(self.count, -1)]
        self.handle = dist.all_gather(shares, _bytes(mean), group=self.ranks, async_op=True)

    def sums(self) -> tuple[Any, float]:
        """Wait for the sums; and what they are multiplied by to be means, which those of 16 bits are already."""
        if self.handle is not None:
            self.handle.wait()
        return self.flat, 1 / self.count if self.flat.element_size() > 2 else 1.0


def _bytes(tensor: Any) -> Any:
    import torch

    return tensor.view(-1).view(torch.uint8)


def start(*values: Any) -> None:
    """Copy all tensors but the last into the last one, bytes, if they are not there, and begin to add up those of all
    ranks.
    """
    import torch

    *parts, buffer = map(torch.from_dlpack, values)
    flat = buffer.view(parts[0].dtype)
    for part, at in zip(parts, places(part.numel() for part in parts), strict=False):
        if part.data_ptr() != flat.data_ptr() + at * flat.element_size():  # it was not computed there
            flat[at : at + part.numel()] = part.view(-1)
    with explained("the mean over ranks"):
        _begun[buffer.data_ptr()] = _Sum(flat, group())


def _sums(buffer: Any) -> tuple[Any, float]:
    """The sums of what was begun in a buffer, and what makes means of them."""
    try:
        with explained("the mean over ranks"):
            own = _begun[buffer.data_ptr()]
            for each in _begun.values() if own.parts is not None else ():  # in the order in which all ranks began them
                each.add_up()
            sums = own.sums()
    except RankError:
        _begun.clear()
        raise
    del _begun[buffer.data_ptr()]
    return sums


def done(buffer: Any, scale: Any) -> None:
    """Wait until the first tensor holds the sums, and write what they are multiplied by to the second."""
    import torch

    torch.from_dlpack(scale).fill_(_sums(torch.from_dlpack(buffer))[1])


def copy(*values: Any) -> None:
    """Wait for the sums in the first tensor, and write the means to the others, one after another."""
    import torch

    buffer, *results = map(torch.from_dlpack, values)
    sums, scale = _sums(buffer)
    for result, at in zip(results, places(result.numel() for result in results), strict=False):
        torch.mul(sums[at : at + result.numel()].view(result.shape), scale, out=result)


#: What the packed functions run.
FUNCTIONS: dict[str, Callable[..., None]] = {START: start, DONE: done, COPY: copy}
