"""Means over ranks, and what all of them have, by torch's functional collectives, which every backend of it has.

Without a process group, or in one of a single process, a mean is the tensor itself. The group and its size become part
of the graph: a module is made in the process that runs it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from autocast.kernels.storage import LOW
from autocast.runtime.collectives import group, places
from autocast.runtime.sharding import share_size
from autocast.torch_target.asked import Asked, Row, Value, torch_dtype


def means_over_ranks(vectors: Sequence[Value]) -> Sequence[Value]:
    """The means of float32 vectors of one size over ranks, in one message."""
    ranks = group()
    if ranks is None:
        return vectors
    sums = torch.ops._c10d_functional.all_reduce(torch.stack(list(vectors)), "sum", ranks.group_name)
    means = torch.ops._c10d_functional.wait_tensor(sums) / ranks.size()
    return [means[row] for row in range(len(vectors))]


def _start(asked: Asked) -> Value:
    """The sums of all tensors in one, on their way; of 16 bits all parts of this rank's share, which it adds up."""
    (parts,) = asked.args
    flat = torch.cat([part.reshape((-1,)) for part in parts])
    ranks = group()
    if ranks is None:
        return flat
    types = list(asked.call.args[0].ty.fields)
    if str(types[0].dtype) not in LOW:
        return torch.ops._c10d_functional.all_reduce(flat, "sum", ranks.group_name)
    elements = sum(math.prod(map(int, ty.shape)) for ty in types)
    share = -(-elements // ranks.size())
    padded = torch.nn.functional.pad(flat, (0, ranks.size() * share - elements))
    split = [share] * ranks.size()
    return torch.ops._c10d_functional.all_to_all_single(padded, split, split, ranks.group_name)


def _done(asked: Asked) -> Value:
    """The means, after the sums have come."""
    shapes = [[int(size) for size in shape] for shape in asked.attrs["shapes"]]
    sizes = [math.prod(shape) for shape in shapes]
    (sums,) = asked.args
    dtype, ranks = torch_dtype(str(asked.attrs["dtype"])), group()
    is_low = int(asked.call.args[0].ty.shape[0]) != places(sizes)[-1] * dtype.itemsize
    if ranks is not None:
        sums = torch.ops._c10d_functional.wait_tensor(sums)
        if is_low:
            mean = sums.reshape((ranks.size(), -1)).to(torch.float32).mean(0).to(sums.dtype)
            sums = torch.ops._c10d_functional.all_gather_into_tensor(mean, ranks.size(), ranks.group_name)
            sums = torch.ops._c10d_functional.wait_tensor(sums)[: sum(sizes)]
        else:
            sums = sums / ranks.size()
    parts = torch.split(sums, sizes)
    return tuple(parts[i].reshape(tuple(shape)).to(dtype) for i, shape in enumerate(shapes))


def _gather_start(asked: Asked) -> Value:
    """The tensors of all ranks one after another, on their way: a row for each rank."""
    (parts,) = asked.args
    own, ranks = torch.cat([part.reshape((-1,)) for part in parts]), group()
    if ranks is None:
        return own
    return torch.ops._c10d_functional.all_gather_into_tensor(own, ranks.size(), ranks.group_name)


def _gather_done(asked: Asked) -> Value:
    """Whole tensors, after all ranks' shares of them have come."""
    (rows,) = asked.args
    count = int(asked.call.args[0].ty.shape[0])
    rows = (rows if group() is None else torch.ops._c10d_functional.wait_tensor(rows)).reshape((count, -1))
    shapes = [tuple(int(size) for size in shape) for shape in asked.attrs["shapes"]]
    sizes = [math.prod(shape) for shape in shapes]
    shares = torch.split(rows, [share_size(size, count) for size in sizes], 1)
    wholes = enumerate(zip(sizes, shapes, strict=True))
    return tuple(shares[place].reshape((-1,))[:size].reshape(shape) for place, (size, shape) in wholes)


ROWS: dict[str, Row] = {
    "collective.all_reduce_start": _start,
    "collective.all_reduce_done": _done,
    "collective.all_gather_start": _gather_start,
    "collective.all_gather_done": _gather_done,
}
