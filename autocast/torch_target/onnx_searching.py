"""Sorting and searching in ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def searching_forms(op: Any) -> dict[Any, Callable[..., Any]]:
    """How torch's exporter is to write them, in the operators `op` of an opset."""

    def sort(x: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
        size = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]))
        return op.TopK(x, size, axis=dim, largest=int(descending), sorted=1)  # of equals the first comes first

    def search(
        boundaries: Any, x: Any, out_int32: bool = False, right: bool = False, side: str | None = None
    ) -> Any:  # torch's own steps halve the example's range, and no longer one
        is_behind = op.Greater if right or side == "right" else op.GreaterOrEqual
        last = op.Constant(value_ints=[-1])
        of_rows = len(boundaries.shape) > 1
        rows = op.Unsqueeze(boundaries, op.Constant(value_ints=[-2])) if of_rows else boundaries
        counted = op.Not(is_behind(rows, op.CastLike(op.Unsqueeze(x, last), rows)))  # NaN is behind all
        return op.ReduceSum(op.Cast(counted, to=6 if out_int32 else 7), last, keepdims=0)  # int32, int64

    def median(x: Any, dim: int = -1, keepdim: bool = False, dtype: Any = None) -> tuple[Any, Any]:
        axis, one = op.Constant(value_ints=[dim]), op.Constant(value_ints=[1])
        middle = op.Div(op.Sub(op.Gather(op.Shape(x), axis), one), op.Constant(value_ints=[2]))
        value, place = (op.Gather(part, middle, axis=dim) for part in sort(x, dim=dim))
        if (dtype or x.dtype).is_floating_point():  # the first NaN, where there is one
            is_nan = op.Cast(op.IsNaN(x), to=6)  # int32
            has_one = op.Cast(op.ReduceMax(is_nan, axis), to=9)  # bool
            value = op.Where(has_one, op.ReduceSum(x, axis), value)
            place = op.Where(has_one, op.ArgMax(is_nan, axis=dim), place)
        return (value, place) if keepdim else (op.Squeeze(value, axis), op.Squeeze(place, axis))

    def median_of_all(x: Any) -> Any:
        return median(op.Reshape(x, op.Constant(value_ints=[-1])), dtype=x.dtype)[0]

    return {
        aten.median.dim: median,
        aten.median.default: median_of_all,
        aten.sort.stable: sort,
        aten.searchsorted.Tensor: search,
        aten.bucketize.Tensor: lambda x, boundaries, **options: search(boundaries, x, **options),
    }
