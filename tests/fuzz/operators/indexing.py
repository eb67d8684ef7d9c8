"""Operators that read and write at indices, search and sort."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tests.fuzz.operators.registry import Unknown, dtype_of, operator
from tests.fuzz.values import Tensor, moved


def _unsure(*indices: Tensor) -> bool:
    return any(bool(index.error.any()) for index in indices)


def _all_unknown(result: Tensor) -> Tensor:
    return Tensor.of(result.value, np.inf, result.dtype)


def _at(result: Tensor, *indices: Tensor) -> Tensor:
    """What was read at indices that a compiled module may rightly get wrong can be anything."""
    return _all_unknown(result) if _unsure(*indices) else result


@operator("relax.take", units=None)
def _take(call: relax.Call, x: Tensor, indices: Any) -> Tensor:
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    numbers = indices.value if isinstance(indices, Tensor) else np.asarray(indices)
    flat = x.value.size if axis is None else x.shape[axis]
    mode = {"fast": "raise", "clip": "clip", "wrap": "wrap", "nan": "raise"}[str(call.attrs.mode)]
    if _unsure(*([indices] if isinstance(indices, Tensor) else [])):
        mode = "clip"
    elif mode == "raise":
        numbers = np.where(numbers < 0, numbers + flat, numbers)
    result = moved(lambda a: np.take(a, numbers, axis, mode=mode), x)  # type: ignore[call-overload]
    return _at(result, *([indices] if isinstance(indices, Tensor) else []))


@operator("relax.gather_elements", units=None)
def _gather_elements(call: relax.Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = int(call.attrs.axis) % x.value.ndim

    def gather(a: np.ndarray) -> np.ndarray:
        index = list(np.indices(indices.shape))
        size, places = a.shape[axis], indices.value
        index[axis] = np.clip(np.where(places < 0, places + size, places), 0, max(size - 1, 0))
        return np.asarray(a[tuple(index)])

    return _at(moved(gather, x), indices)


@operator("relax.gather_nd", units=None)
def _gather_nd(call: relax.Call, x: Tensor, indices: Tensor) -> Tensor:
    batch = int(call.attrs.batch_dims)

    def gather(a: np.ndarray) -> np.ndarray:
        lead = a.shape[:batch]
        rest = indices.shape[batch:-1]
        parts = [a[b][tuple(np.moveaxis(indices.value[b], -1, 0))] for b in np.ndindex(*lead)]
        tail = a.shape[batch + indices.shape[-1] :]
        return np.array(parts, a.dtype).reshape(*lead, *rest, *tail)

    return _at(moved(gather, x), indices)


_REDUCE = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def _scattered(reduction: str, x: Tensor, index: Any, updates: Tensor, dtype: str) -> Tensor:
    value, error = x.value.copy(), x.error.copy()
    if reduction == "update":
        value[index], error[index] = updates.value, updates.error
        # Of several updates of one element any may be the last.
        count = np.zeros(value.shape)
        np.add.at(count, index, 1)
        low, high = value.copy(), value.copy()
        np.minimum.at(low, index, updates.value)
        np.maximum.at(high, index, updates.value)
        if value.dtype != np.bool_:
            error = np.where(count > 1, error + high.astype(float) - low, error)
        return Tensor.of(value, error, dtype)
    function = _REDUCE[reduction]
    function.at(value, index, updates.value)  # type: ignore[attr-defined]
    if reduction == "add":
        unit = 2.0**-23 if updates.is_float else 0.0
        size = np.abs(x.value.astype(np.float64))
        np.add.at(size, index, np.abs(updates.value))
        count = np.zeros(value.shape)
        np.add.at(count, index, 1)
        np.add.at(error, index, updates.error)
        error = error + unit * count * size
    elif reduction == "mul":
        high = np.abs(x.value) + x.error
        np.multiply.at(high, index, np.abs(updates.value) + updates.error)
        count = np.zeros(value.shape)
        np.add.at(count, index, 1)
        error = high - np.abs(value) + high * count * 2.0**-23 if updates.is_float else error
    else:
        np.maximum.at(error, index, updates.error)
    return Tensor.of(value, error, dtype)


@operator("relax.scatter_elements")
def _scatter_elements(call: relax.Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = int(call.attrs.axis) % x.value.ndim
    index = list(np.indices(indices.shape))
    index[axis] = np.where(indices.value < 0, indices.value + x.shape[axis], indices.value)
    if _unsure(indices):
        return _all_unknown(x)
    updates = moved(lambda a: a[tuple(slice(n) for n in indices.shape)], updates)
    return _scattered(str(call.attrs.reduction), x, tuple(index), updates, x.dtype)


@operator("relax.scatter_nd")
def _scatter_nd(call: relax.Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    if _unsure(indices):
        return _all_unknown(x)
    index = tuple(np.moveaxis(indices.value, -1, 0))
    return _scattered(str(call.attrs.reduction), x, index, updates, x.dtype)


@operator("relax.nn.index_copy")
def _index_copy(call: relax.Call, x: Tensor, numbers: Tensor, source: Tensor) -> Tensor:
    if _unsure(numbers):
        return _all_unknown(x)
    axis = int(call.attrs.axis)
    size = x.shape[axis]
    rows = np.clip(np.where(numbers.value < 0, numbers.value + size, numbers.value), 0, size - 1)
    index = (*[slice(None)] * axis, rows)
    return _scattered("update", x, index, source, x.dtype)


@operator("relax.index_put")
def _index_put(call: relax.Call, x: Tensor, indices: Any, values: Tensor) -> Tensor:
    indices = indices if isinstance(indices, tuple) else (indices,)
    if _unsure(*indices):
        return _all_unknown(x)
    index = np.broadcast_arrays(*[i.value for i in indices])
    updates = moved(lambda a: np.broadcast_to(a, index[0].shape), values)
    return _scattered("add" if call.attrs.accumulate else "update", x, tuple(index), updates, x.dtype)


@operator("relax.index_tensor", units=None)
def _index_tensor(call: relax.Call, x: Tensor, indices: tuple[Tensor, ...]) -> Tensor:
    if _unsure(*indices):
        indices = tuple(Tensor.exact(i.value * 0, i.dtype) for i in indices)
        return _all_unknown(moved(lambda a: a[tuple(i.value for i in indices)], x))
    return moved(lambda a: a[tuple(i.value for i in indices)], x)


@operator("relax.slice_scatter", units=None)
def _slice_scatter(call: relax.Call, x: Tensor, source: Tensor, start: int, end: int, step: int) -> Tensor:
    axis = int(call.attrs.axis) % x.value.ndim
    index = (slice(None),) * axis + (slice(start, end, step),)

    def scatter(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        result = a.copy()
        result[index] = b
        return result

    return moved(scatter, x, source)


@operator("relax.bucketize", units=0)
def _bucketize(call: relax.Call, x: Tensor, boundaries: Tensor) -> Tensor:
    side: Any = "right" if call.attrs.right else "left"
    value = np.searchsorted(boundaries.value, x.value, side)
    near = x.error + float(boundaries.error.max(initial=0.0))
    low = np.searchsorted(boundaries.value, x.value - near, "left")
    high = np.searchsorted(boundaries.value, x.value + near, "right")
    unsure = np.where(near > 0, high - low, 0)
    return Tensor.of(value, unsure, dtype_of(call))


@operator("relax.argmax", "relax.argmin", units=0)
def _argmax(call: relax.Call, x: Tensor) -> Tensor:
    axis, keep = call.attrs.axis, bool(call.attrs.keepdims)
    sign = 1 if call.op.name == "relax.argmax" else -1
    value, error = sign * x.value.astype(np.float64), x.error
    shape = x.shape
    if axis is None:
        value, error, where = value.ravel(), error.ravel(), 0
    else:
        where = int(axis) % max(value.ndim, 1)
    if value.ndim == 0:
        value, error = value[None], error[None]
    best = value.argmax(where)
    at = np.expand_dims(best, where)
    largest, off = np.take_along_axis(value, at, where), np.take_along_axis(error, at, where)
    rivals = ((value + error >= largest - off) & (error + off > 0)).sum(where) > 1
    result = np.expand_dims(best, where) if keep and shape else best
    unsure = np.expand_dims(rivals, where) if keep and shape else rivals
    if axis is None:
        new = (1,) * len(shape) if keep else ()
        result, unsure = result.reshape(new), unsure.reshape(new)
    return Tensor.of(result, np.where(unsure, np.inf, 0.0), dtype_of(call))


def ranked(x: Tensor, axis: int, descending: bool) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Sorted values, where they were, and whether that is sure: no neighbour could take its place."""
    value = x.value.astype(np.float64)
    order = np.argsort(-value if descending else value, axis, kind="stable")
    error = x.error.max(axis, keepdims=True, initial=0.0)
    values = np.take_along_axis(x.value, order, axis)
    apart = np.abs(np.diff(values.astype(np.float64), axis=axis)) > 2 * error
    pad = [(0, 0)] * value.ndim
    before, after = list(pad), list(pad)
    before[axis], after[axis] = (1, 0), (0, 1)
    sure = np.pad(apart, before, constant_values=True) & np.pad(apart, after, constant_values=True)
    return Tensor.of(values, np.broadcast_to(error, values.shape), x.dtype), order, sure


@operator("relax.sort", units=None)
def _sort(call: relax.Call, x: Tensor) -> Tensor:
    return ranked(x, int(call.attrs.axis) % x.value.ndim, bool(call.attrs.descending))[0]


@operator("relax.argsort", units=0)
def _argsort(call: relax.Call, x: Tensor) -> Tensor:
    _, order, sure = ranked(x, int(call.attrs.axis) % x.value.ndim, bool(call.attrs.descending))
    return Tensor.of(order, np.where(sure, 0.0, np.inf), dtype_of(call))


@operator("relax.topk", units=None)
def _topk(call: relax.Call, x: Tensor) -> Any:
    axis, k = int(call.attrs.axis) % x.value.ndim, int(call.attrs.k)
    values, order, sure = ranked(x, axis, bool(call.attrs.largest))
    cut = (slice(None),) * axis + (slice(k if k > 0 else None),)
    best = Tensor(values.value[cut], values.error[cut], x.dtype)
    at = Tensor.of(order[cut], np.where(sure, 0.0, np.inf)[cut], str(call.attrs.dtype))
    return {"both": (best, at), "values": best, "indices": at}[str(call.attrs.ret_type)]


@operator("relax.nonzero", units=0)
def _nonzero(call: relax.Call, x: Tensor) -> Tensor:
    if _unsure(x) and np.any((np.abs(x.value.astype(float)) <= x.error) & (x.error > 0)):
        raise Unknown("as many places as rounding leaves")
    return Tensor.exact(np.array(np.nonzero(x.value)), dtype_of(call))


@operator("relax.unique", units=None)
def _unique(call: relax.Call, x: Tensor, ordered: Any, places: Any, inverse: Any, counts: Any, axis: Any = None) -> Any:
    """The different values in order, and what else is asked for."""
    if _unsure(x):
        raise Unknown("as many values as rounding leaves different")
    more = [bool(one) for one in (places, inverse, counts)]
    found = np.unique(x.value, *more, axis=None if axis is None else int(axis))
    if not any(more):
        return Tensor.exact(found, x.dtype)
    return (Tensor.exact(found[0], x.dtype), *(Tensor.exact(part, "int64") for part in found[1:]))
