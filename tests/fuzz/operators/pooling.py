"""Pooling."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tests.fuzz.operators.products import reorder, spatial
from tests.fuzz.operators.registry import dtype_of, integers, operator
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


def _average(call: relax.Call, shape: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray]:
    """What averages the windows of a tensor of this shape."""
    attrs = call.attrs
    first, back = _axes(str(attrs.layout), str(attrs.out_layout))
    inside = np.ones([shape[axis] for axis in first])
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
    return lambda a: np.asarray((_windows(call, a.transpose(first), 0.0).sum(-1) / counts).transpose(back))


@operator("relax.nn.avg_pool1d", "relax.nn.avg_pool2d", "relax.nn.avg_pool3d", units=2)
def _avg_pool(call: relax.Call, x: Tensor) -> Tensor:
    return linear(_average(call, x.shape), int(np.prod(integers(call.attrs.pool_size))), x)


@operator("relax.grad.avg_pool2d_backward", units=2)
def _avg_pool_backward(call: relax.Call, g: Tensor, x: Tensor) -> Tensor:
    """A matrix for one image, transposed: its rows are the averages of images with a single 1."""
    height, width = x.shape[2:]
    images = np.eye(height * width).reshape(-1, 1, height, width)
    matrix = _average(call, images.shape)(images).reshape(height * width, -1)

    def adjoint(a: np.ndarray) -> np.ndarray:
        return (a.reshape(*a.shape[:2], -1) @ matrix.T).reshape(x.shape)

    return linear(adjoint, int(np.prod(integers(call.attrs.pool_size))), g, dtype=dtype_of(call))


@operator("relax.grad.max_pool2d_backward", units=2)
def _max_pool_backward(call: relax.Call, g: Tensor, x: Tensor) -> Tensor:
    """An adjoint goes to the largest of its window; where others may be as large, to any of them."""
    places = _windows(call, np.arange(x.value.size, dtype=float).reshape(x.shape), -1.0).astype(int)
    value, error = _windows(call, x.value, -np.inf), _windows(call, x.error, 0.0)
    best = value.argmax(-1)[..., None]
    least = (np.take_along_axis(value, best, -1) - np.take_along_axis(error, best, -1)).max(-1, keepdims=True)
    rivals = (value + error >= least) & (places >= 0)
    chosen = np.take_along_axis(places, best, -1)[..., 0]

    def adjoint(a: np.ndarray) -> np.ndarray:
        result = np.zeros(x.value.size)
        np.add.at(result, chosen, a)
        return result.reshape(x.shape)

    result = linear(adjoint, int(np.prod(integers(call.attrs.pool_size))), g, dtype=dtype_of(call))
    unsure = np.zeros(x.value.size, bool)
    unsure[places[rivals & (rivals.sum(-1, keepdims=True) > 1)]] = True
    return Tensor.of(result.value, np.where(unsure.reshape(x.shape), np.inf, result.error), result.dtype)


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
