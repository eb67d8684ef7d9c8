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
        rows = op.Unsqueeze(boundaries, op.Constant(value_ints=[-2]))
        counted = op.Not(is_behind(rows, op.CastLike(op.Unsqueeze(x, last), rows)))  # NaN is behind all
        return op.ReduceSum(op.Cast(counted, to=6 if out_int32 else 7), last, keepdims=0)  # int32, int64

    return {
        aten.sort.stable: sort,
        aten.searchsorted.Tensor: search,
        aten.bucketize.Tensor: lambda x, boundaries, **options: search(boundaries, x, **options),
    }
