"""Adaptive pooling in ONNX: windows that divide an image of any size as evenly as they can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

aten = torch.ops.aten


def pooling_forms(op: Any) -> dict[Any, Callable[..., Any]]:
    """How torch's exporter is to write them, in the operators `op` of an opset: its own have the example's windows."""

    def number(value: int) -> Any:
        return op.Constant(value_int=value)

    def average(x: Any, output_size: Sequence[int], space: int) -> Any:
        extents = x.shape[-space:]
        if all(isinstance(size, int) and size % n == 0 for size, n in zip(extents, output_size, strict=True)):
            windows = [size // n for size, n in zip(extents, output_size, strict=True)]
            return op.AveragePool(x, kernel_shape=windows, strides=windows)
        for axis, outputs in zip(range(-space, 0), output_size, strict=True):
            x = op.ReduceMean(x, op.Constant(value_ints=[axis])) if outputs == 1 else along(x, axis, outputs)
        return x

    def along(x: Any, axis: int, outputs: int) -> Any:
        """Means along one axis, of rows that are as long as the longest window, without what is beyond each."""
        last, others = op.Constant(value_ints=[-1]), [1] * (-1 - axis)
        extent, count = op.Gather(op.Shape(x), number(axis)), number(outputs)
        places = op.Range(number(0), count, number(1))
        begins = op.Div(op.Mul(places, extent), count)
        ends = op.Div(op.Add(op.Mul(op.Add(places, number(1)), extent), number(outputs - 1)), count)
        lengths = op.Sub(ends, begins)  # (outputs,)
        steps = op.Range(number(0), op.ReduceMax(lengths, keepdims=0), number(1))
        seen = op.Add(op.Unsqueeze(begins, last), steps)  # (outputs, the longest window)
        inside = op.Reshape(op.Less(seen, op.Unsqueeze(ends, last)), op.Constant(value_ints=[outputs, -1, *others]))
        rows = op.Gather(x, op.Min(seen, op.Sub(extent, number(1))), axis=axis)
        sums = op.ReduceSum(
            op.Where(inside, rows, op.CastLike(number(0), x)), op.Constant(value_ints=[axis]), keepdims=0
        )
        return op.Div(sums, op.CastLike(op.Reshape(lengths, op.Constant(value_ints=[outputs, *others])), x))

    overloads = (aten.adaptive_avg_pool1d, aten.adaptive_avg_pool2d, aten.adaptive_avg_pool3d)
    return {one.default: partial(average, space=space) for space, one in enumerate(overloads, 1)}
