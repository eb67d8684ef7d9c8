"""Pooling."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from tvm import relax

from tests.fuzz.operators.products import reorder, spatial
from tests.fuzz.operators.registry import integers, operator
from tests.fuzz.values import Tensor, linear


def _windows(call: relax.Call, x: np.ndarray, fill: float) -> np.ndarray:
    """The elements of each window along a new last axis; batch and channels first."""
    attrs = call.attrs
    pool, strides, dilation = integers(attrs.pool_size), integers(attrs.strides), integers(attrs.dilation)
    padding, n = integers(attrs.padding), len(pool)
    sizes, after = [], []
    for i in range(n):
        span = dilation[i] * (pool[i] - 1) + 1
        room = x.shape[2 + i] + padding[i] + padding[n + i] - span
        sizes.append((-(-room // strides[i]) if attrs.ceil_mode else room // strides[i]) + 1)
        if attrs.ceil_mode and (sizes[i] - 1) * strides[i] >= x.shape[2 + i] + padding[i]:
            sizes[i] -= 1  # no window begins in the padding behind
        after.append(max(padding[n + i], (sizes[i] - 1) * strides[i] + span - x.shape[2 + i] - padding[i]))
    x = np.pad(x, [(0, 0), (0, 0), *zip(padding[:n], after, strict=True)], constant_values=fill)
    parts = []
    for tap in itertools.product(*map(range, pool)):
        cut = tuple(
            slice(tap[i] * dilation[i], tap[i] * dilation[i] + strides[i] * (sizes[i] - 1) + 1, strides[i])
            for i in range(n)
        )
        parts.append(x[(slice(None), slice(None), *cut)])
    return np.stack(parts, -1)


def _axes(layout: str, out: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    first = "NC" + spatial(layout)
    return reorder(layout, first), reorder(first, out)


@operator("relax.nn.max_pool1d", "relax.nn.max_pool2d", "relax.nn.max_pool3d", units=None)
def _max_pool(call: relax.Call, x: Tensor) -> Tensor:
    first, back = _axes(str(call.attrs.layout), str(call.attrs.out_layout))
    low = -np.inf if x.is_float else np.iinfo(np.int64).min
    value = _windows(call, x.value.transpose(first), low).max(-1).transpose(back)
    return Tensor.of(value, _windows(call, x.error.transpose(first), 0.0).max(-1).transpose(back), x.dtype)


@operator("relax.nn.avg_pool1d", "relax.nn.avg_pool2d", "relax.nn.avg_pool3d", units=2)
def _avg_pool(call: relax.Call, x: Tensor) -> Tensor:
    attrs = call.attrs
    first, back = _axes(str(attrs.layout), str(attrs.out_layout))
    inside = np.ones([x.shape[axis] for axis in first])
    padding = integers(attrs.padding)
    n = len(padding) // 2
    if attrs.count_include_pad:
        widths = list(zip(padding[:n], padding[n:], strict=True))
        inside = np.pad(inside, [(0, 0), (0, 0), *widths], constant_values=1.0)

        class Unpadded:  # the windows of the padded tensor, whose padding counts
            class attrs:
                pool_size, strides, dilation = call.attrs.pool_size, call.attrs.strides, call.attrs.dilation
                padding, ceil_mode = (0,) * (2 * n), call.attrs.ceil_mode

        counts: Any = _windows(Unpadded, inside, 0.0).sum(-1)  # type: ignore[arg-type]
    else:
        counts = _windows(call, inside, 0.0).sum(-1)
    counts = np.maximum(counts, 1)

    def average(a: np.ndarray) -> np.ndarray:
        return np.asarray((_windows(call, a.transpose(first), 0.0).sum(-1) / counts).transpose(back))

    return linear(average, int(np.prod(integers(attrs.pool_size))), x)


@operator("relax.nn.adaptive_avg_pool1d", "relax.nn.adaptive_avg_pool2d", "relax.nn.adaptive_avg_pool3d", units=2)
def _adaptive(call: relax.Call, x: Tensor) -> Tensor:
    first, back = _axes(str(call.attrs.layout), str(call.attrs.out_layout))
    sizes = [x.shape[axis] for axis in first[2:]]
    out = sizes if call.attrs.output_size is None else list(integers(call.attrs.output_size))
    out = out * len(sizes) if len(out) == 1 else out

    def average(a: np.ndarray) -> np.ndarray:
        a = a.transpose(first)
        result = np.zeros((*a.shape[:2], *out))
        for at in np.ndindex(*out):
            cut = [slice(i * n // o, -(-(i + 1) * n // o)) for i, n, o in zip(at, sizes, out, strict=True)]
            part = a[(slice(None), slice(None), *cut)]
            result[(slice(None), slice(None), *at)] = part.mean(tuple(range(2, a.ndim)))
        return result.transpose(back)

    return linear(average, int(np.prod(sizes)), x)
