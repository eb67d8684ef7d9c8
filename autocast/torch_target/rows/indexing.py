"""What reads and writes at indices, searches and sorts."""

from __future__ import annotations

import math

import torch

from autocast.errors import UnsupportedError
from autocast.ir import dtype_of
from autocast.torch_target.asked import Asked, Row, Value, torch_dtype


def _within(indices: Value, size: Value, mode: str) -> Value:
    """Indices as torch takes them: not below 0, and where there is a mode of `take`, within the tensor."""
    indices = indices.to(torch.int64)
    if mode == "wrap":
        return torch.remainder(indices, size)
    if mode:
        return torch.clamp(indices, 0, size - 1)
    return torch.where(indices < 0, indices + size, indices)


def _take(asked: Asked) -> Value:
    x, indices = asked.args
    indices = torch.tensor(indices) if isinstance(indices, int) else indices
    if asked.attrs.axis is None:
        x, axis, size = x.reshape(-1), 0, x.numel()
    else:
        axis = asked.axis()
        size = asked.shape_of(0)[axis]
    mode = str(asked.attrs.mode)
    if mode == "nan" and not asked.dtype.is_floating_point:
        raise UnsupportedError(
            f"to_torch: relax.take(mode='nan') of numbers of {asked.dtype}, which have no NaN; expected floating-point "
            "numbers, or the mode 'clip' or 'wrap'"
        )
    places = _within(indices, size, mode)
    rank = asked.call.args[1].ty.ndim if hasattr(asked.call.args[1].ty, "ndim") else 0
    found = x.index_select(axis, places.reshape(-1) if rank != 1 else places)
    if mode == "nan":
        inside = (places == indices).reshape([-1 if i == axis else 1 for i in range(max(asked.rank(), 1))])
        found = torch.where(inside, found, math.nan)
    return found if rank == 1 else found.reshape(asked.shape)


def _gather_elements(asked: Asked) -> Value:
    axis = asked.axis()
    size = asked.shape_of(0)[axis]
    return torch.gather(asked.args[0], axis, torch.clamp(_within(asked.args[1], size, ""), 0, size - 1))


def _gather_nd(asked: Asked) -> Value:
    x, indices = asked.args
    batch, last = int(asked.attrs.batch_dims), asked.call.args[1].ty.shape.values[-1]
    lead = asked.shape_of(1)[:-1]
    places = [torch.select(indices, -1, i).to(torch.int64) for i in range(int(last))]
    rank = len(lead)
    grids = [
        torch.arange(asked.shape_of(0)[i]).reshape([-1 if axis == i else 1 for axis in range(rank)])
        for i in range(batch)
    ]
    return x[(*grids, *places)]


_REDUCE = {"add": "sum", "mul": "prod", "mean": "mean", "min": "amin", "max": "amax"}


def _scatter_elements(asked: Asked) -> Value:
    _, indices, updates = asked.args
    x = asked.wide(0)
    axis, reduction = asked.axis(), str(asked.attrs.reduction)
    places = _within(indices, asked.shape_of(0)[axis], "")
    updates = updates.to(torch.float32) if asked.is_low() else updates
    if reduction == "update":
        return asked.stored(torch.scatter(x, axis, places, updates))
    return asked.stored(torch.scatter_reduce(x, axis, places, updates, _REDUCE[reduction]))


def _scatter_nd(asked: Asked) -> Value:
    """Blocks, each at a place that the last axis of the indices says."""
    _, indices, updates = asked.args
    x, reduction = asked.wide(0), str(asked.attrs.reduction)
    updates = updates.to(torch.float32) if asked.is_low() else updates
    sizes = asked.shape_of(0)[: int(asked.call.args[1].ty.shape.values[-1])]
    rows: Value = 0
    for i, size in enumerate(sizes):
        rows = rows * size + _within(torch.select(indices, -1, i), size, "")
    # torch does not work out a size where another is 0.
    width, count = math.prod(asked.shape_of(0)[len(sizes) :]), math.prod(asked.shape_of(1)[:-1])
    flat = x.reshape((math.prod(sizes), width))
    places = rows.reshape((count, 1)).expand((count, width))
    updates = updates.reshape((count, width))
    if reduction == "update":
        return asked.stored(torch.scatter(flat, 0, places, updates).reshape(asked.shape_of(0)))
    return asked.stored(torch.scatter_reduce(flat, 0, places, updates, _REDUCE[reduction]).reshape(asked.shape_of(0)))


def _reverse_sequence(asked: Asked) -> Value:
    x, lengths = asked.args
    axes = int(asked.attrs.batch_axis) % asked.rank(), int(asked.attrs.seq_axis) % asked.rank()
    batch, length = (asked.shape_of(0)[axis] for axis in axes)
    places, ends = torch.arange(length)[None, :], lengths.to(torch.int64)[:, None]
    source = torch.where(places < ends, ends - 1 - places, places)
    return torch.movedim(torch.movedim(x, axes, (0, 1))[torch.arange(batch)[:, None], source], (0, 1), axes)


def _unique(asked: Asked) -> Value:
    """The different values, and what else is asked for: their first places, where each went, how many there are."""
    x, _, *wanted = asked.args
    axis = wanted[3] if len(wanted) > 3 else None
    x = x.reshape(-1) if axis is None else x
    axis = 0 if axis is None else int(axis)
    found = torch.unique(x, return_inverse=True, return_counts=True, dim=axis)
    values, inverse, counts = (found[i] for i in range(3))
    if not any(wanted[:3]):
        return values
    count = x.size(axis)
    last = torch.full_like(counts, count - 1)
    first = torch.scatter_reduce(last, 0, inverse.reshape(-1), torch.arange(count), "amin")
    more = zip((first, inverse.reshape(-1), counts), wanted[:3], strict=True)
    return (values, *(part for part, is_wanted in more if is_wanted))


def _index_put(asked: Asked) -> Value:
    _, indices, values = asked.args
    indices = indices if isinstance(indices, tuple) else (indices,)
    places = tuple(index.to(torch.int64) for index in indices)
    values = values.to(torch.float32) if asked.is_low() else values
    return asked.stored(torch.index_put(asked.wide(0), places, values, bool(asked.attrs.accumulate)))


def _index_tensor(asked: Asked) -> Value:
    return asked.args[0][tuple(index.to(torch.int64) for index in asked.args[1])]


def _index_copy(asked: Asked) -> Value:
    x, numbers, source = asked.args
    axis = asked.axis()
    size = asked.shape_of(0)[axis]
    return torch.index_copy(x, axis, torch.clamp(_within(numbers, size, ""), 0, size - 1), source)


def _slice_scatter(asked: Asked) -> Value:
    x, source, start, end, step = asked.args
    return torch.slice_scatter(x, source, asked.axis(), start, end, step)


def _bucketize(asked: Asked) -> Value:
    x, boundaries = asked.args
    return torch.bucketize(x, boundaries, right=bool(asked.attrs.right)).to(asked.dtype)


def _sort(asked: Asked) -> Value:
    found = torch.sort(asked.args[0], dim=asked.axis(), descending=bool(asked.attrs.descending), stable=True)
    return found[0]


def _argsort(asked: Asked) -> Value:
    axis, descending = asked.axis(), bool(asked.attrs.descending)
    return torch.argsort(asked.args[0], dim=axis, descending=descending, stable=True).to(asked.dtype)


def _topk(asked: Asked) -> Value:
    axis, k = asked.axis(), int(asked.attrs.k)
    found = torch.sort(asked.args[0], dim=axis, descending=bool(asked.attrs.largest), stable=True)
    size = asked.shape_of(0)[axis]
    count = size if k < 1 or (isinstance(size, int) and k > size) else k
    values = torch.narrow(found[0], axis, 0, count)
    places = torch.narrow(found[1], axis, 0, count).to(torch_dtype(str(asked.attrs.dtype)))
    return {"both": (values, places), "values": values, "indices": places}[str(asked.attrs.ret_type)]


def _take_backward(asked: Asked) -> Value:
    """The adjoint of what was read at indices: each is added where its element came from, in float32."""
    g, _, indices = asked.args
    axis, shape = asked.axis(rank=asked.rank(1)), asked.shape_of(1)
    places = _within(indices, shape[axis], "").reshape(-1)
    wide = torch.float32 if asked.is_low() else torch_dtype(str(dtype_of(asked.call.args[0])))
    rows = g.to(wide).reshape((*shape[:axis], -1, *shape[axis + 1 :]))
    return torch.index_add(torch.zeros(shape, dtype=wide), axis, places, rows).to(asked.dtype)


ROWS: dict[str, Row] = {
    "take": _take,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "reverse_sequence": _reverse_sequence,
    "unique": _unique,
    "index_put": _index_put,
    "index_tensor": _index_tensor,
    "nn.index_copy": _index_copy,
    "slice_scatter": _slice_scatter,
    "bucketize": _bucketize,
    "sort": _sort,
    "argsort": _argsort,
    "topk": _topk,
    "grad.take_backward": _take_backward,
}
