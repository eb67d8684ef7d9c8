"""Updates scattered along an axis: TVM counts those of every shape as if it were that of what they are written into."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T


def _extreme(old: tirx.Expr, new: tirx.Expr, is_kept: tirx.Expr) -> tirx.Expr:
    """The old number where it is kept or NaN; NaN is no reason to keep another."""
    if "float" in str(old.ty.dtype):
        is_kept = tirx.any(is_kept, tirx.isnan(old))
    return tirx.Select(is_kept, old, new)


#: What becomes of an element and its update.
_UPDATED: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "mean": lambda old, new: (old + new) / 2,
    "min": lambda old, new: _extreme(old, new, old < new),
    "max": lambda old, new: _extreme(old, new, old > new),
}


def scattered(data: te.Tensor, places: te.Tensor, updates: te.Tensor, axis: int, reduction: str) -> te.Tensor:
    """`data` with `updates` at `places`, which lie in `data`; those of one place are applied in their order.

    Parameters
    ----------
    data : te.Tensor
        Of any shape, and rank 1 at least.
    places, updates : te.Tensor
        Of one shape, along other axes than `axis` no larger than that of `data`.
    """
    extents = [tirx.convert(size).astype("int64") for size in data.shape]
    sizes = [tirx.convert(size).astype("int64") for size in places.shape]
    strides = [math.prod(extents[i + 1 :], start=tirx.const(1, "int64")) for i in range(len(extents))]
    after = math.prod(sizes[axis + 1 :], start=tirx.const(1, "int64"))
    before = math.prod(sizes[:axis], start=tirx.const(1, "int64"))

    def body(inputs: Sequence[Any], outputs: Sequence[Any]) -> tirx.Stmt:
        old, place, new, result = map(T.buffer_proxy, (*inputs, *outputs))
        with IRBuilder() as builder:
            with T.seq_scope():
                with T.parallel(0, math.prod(extents, start=tirx.const(1, "int64"))) as i:
                    result[i] = old[i]
                with T.parallel(0, before * after) as fused:
                    start = _offset(fused // after, sizes[:axis], strides[:axis])
                    start += _offset(fused % after, sizes[axis + 1 :], strides[axis + 1 :])
                    with T.serial(0, sizes[axis]) as k:
                        at = (fused // after * sizes[axis] + k) * after + fused % after
                        to = start + place[at] * strides[axis]
                        result[to] = _UPDATED[reduction](result[to], new[at])
            return builder.get()

    written = tirx.decl_buffer(data.shape, data.dtype, "scattered", layout=None)
    return te.extern(
        [data.shape],
        [data, places, updates],
        body,
        dtype=data.dtype,
        out_buffers=[written],
        name="scattered",
    )


def _offset(number: tirx.Expr, sizes: Sequence[tirx.Expr], strides: Sequence[tirx.Expr]) -> tirx.Expr:
    """Where the element of this number among those of `sizes` lies, of which the steps are `strides`."""
    offset = tirx.const(0, "int64")
    for size, stride in reversed(list(zip(sizes, strides, strict=True))):
        offset += number % size * stride
        number = number // size
    return offset
