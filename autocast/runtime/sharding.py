"""Shares of tensors, of which each process of a training has one: what steps call whose optimizers' state is divided.

A tensor of n elements, as one row, is divided into as many shares as there are processes: ceil(n / count) elements
each, where zeros fill the last. `reduce_scatter` gives each process the mean over all of its own share, `all_gather`
the shares of all of them: gloo's `all_to_all` and `all_gather`, in the background as in `autocast.runtime.collectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autocast.errors import RankError
from autocast.runtime.collectives import explained, group, mean_of_rows

#: The packed functions, as a module calls them; `autocast.runtime.torch_calls` registers them.
SCATTER_START = "torch.distributed.reduce_scatter_start"
SCATTER_DONE = "torch.distributed.reduce_scatter_done"
GATHER_START = "torch.distributed.all_gather_start"
GATHER_DONE = "torch.distributed.all_gather_done"
SHARE = "torch.distributed.share"

#: How many messages of gradients are received at a time: each needs room for as much as is sent. When more have been
#: sent, the oldest is waited for and added up; the network is busy with the others meanwhile.
_RECEIVED_AT_ONCE = 2

#: What was begun and is not done, by the address of its memory: rows of gradients, or of parameters what to wait for,
#: and what is sent.
_scattered: dict[int, _Rows] = {}
_gathered: dict[int, tuple[Any, Any]] = {}


class _Rows:
    """The shares of this process that all others send it, and in the end their mean, float32."""

    def __init__(self, rows: Any, ranks: Any) -> None:
        import torch
        import torch.distributed as dist

        self.received: Any = rows
        self.handle: Any = None
        if ranks is None:
            return
        self.received = torch.empty_like(rows)
        self.handle = dist.all_to_all_single(_bytes(self.received), _bytes(rows), group=ranks, async_op=True)

    def mean(self) -> Any:
        """Wait for the shares; their memory is free then."""
        if self.received is not None:
            if self.handle is not None:
                self.handle.wait()
            self._mean, self.received = mean_of_rows(self.received), None
        return self._mean


def _bytes(rows: Any) -> Any:
    import torch

    return rows.view(torch.uint8)


def share_size(elements: int, count: int) -> int:
    """How many elements the share of a tensor has."""
    return -(-elements // count)


def _rows(parts: Sequence[Any], rows: Any) -> None:
    """Write the shares of rank r of all parts to row r of `rows`, one after another."""
    start = 0
    for part in parts:
        size = share_size(part.numel(), len(rows))
        whole = part.reshape(-1)
        for rank, row in enumerate(rows):
            share = whole[rank * size : (rank + 1) * size]
            row[start : start + len(share)] = share
            row[start + len(share) : start + size] = 0
        start += size


def _ranks(rows: int) -> Any:
    ranks = group()
    count = 1 if ranks is None else ranks.size()
    if rows != count:
        raise RankError(
            f"a training step of {rows} processes with zero=1 runs in {count}, expected {rows}: it was made while that "
            "many trained together. Make the Trainer, or the step, in the processes that run it"
        )
    return ranks


def scatter_start(*values: Any) -> None:
    """Copy all tensors but the last into the last one, bytes of a row for each process, and begin to send the rows."""
    import torch

    *parts, buffer = map(torch.from_dlpack, values)
    rows, ranks = buffer.view(parts[0].dtype), _ranks(len(buffer))
    _rows(parts, rows)
    with explained("the sum over ranks"):
        waiting = [each for each in _scattered.values() if each.received is not None]
        if len(waiting) == _RECEIVED_AT_ONCE:
            waiting[0].mean()
        _scattered[buffer.data_ptr()] = _Rows(rows, ranks)


def scatter_done(*values: Any) -> None:
    """Wait for what all processes send, and write the mean of it, of this process's shares, to the other tensors."""
    import torch

    buffer, *shares = map(torch.from_dlpack, values)
    with explained("the sum over ranks"):
        mean = _scattered.pop(buffer.data_ptr()).mean()
    for share, part in zip(shares, mean.split([share.numel() for share in shares]), strict=True):
        share.copy_(part)


def gather_start(*values: Any) -> None:
    """Begin to send all tensors but the last, shares, to all processes; the last, bytes, has room for what comes."""
    import torch
    import torch.distributed as dist

    *shares, buffer = map(torch.from_dlpack, values)
    own = torch.cat([share.reshape(-1) for share in shares])
    rows, ranks, handle = buffer.view(own.dtype), _ranks(len(buffer)), None
    if ranks is None:
        rows[0] = own
    else:
        with explained("the exchange of parameters"):
            handle = dist.all_gather(list(rows), own, group=ranks, async_op=True)
    _gathered[buffer.data_ptr()] = handle, own


def gather_done(*values: Any) -> None:
    """Wait for the shares of all processes, and write whole tensors of them."""
    import torch

    buffer, *results = map(torch.from_dlpack, values)
    handle, own = _gathered.pop(buffer.data_ptr())
    if handle is not None:
        with explained("the exchange of parameters"):
            handle.wait()
    rows, start = buffer.view(own.dtype), 0
    for result in results:
        size, whole = share_size(result.numel(), len(rows)), result.view(-1)
        for rank, row in enumerate(rows):
            part = whole[rank * size : (rank + 1) * size]
            part.copy_(row[start : start + len(part)])
        start += size


def share(tensor: Any, result: Any) -> None:
    """Copy this process's share of a tensor; zeros fill it."""
    import torch

    whole, own = torch.from_dlpack(tensor).view(-1), torch.from_dlpack(result)
    ranks = group()
    rank = 0 if ranks is None else ranks.rank()
    part = whole[rank * own.numel() : (rank + 1) * own.numel()]
    own[: len(part)] = part
    own[len(part) :] = 0


#: What the packed functions run.
FUNCTIONS: dict[str, Callable[..., None]] = {
    SCATTER_START: scatter_start,
    SCATTER_DONE: scatter_done,
    GATHER_START: gather_start,
    GATHER_DONE: gather_done,
    SHARE: share,
}
