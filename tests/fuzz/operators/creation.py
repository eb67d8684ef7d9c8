"""Operators that make tensors of nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tests.fuzz.operators.registry import dtype_of, operator
from tests.fuzz.values import FUNCTION, Tensor


@operator("relax.zeros", "relax.ones", "relax.zeros_like", "relax.ones_like", units=0)
def _filled(call: relax.Call, shape: Any) -> Tensor:
    shape = shape.shape if isinstance(shape, Tensor) else shape
    return Tensor.exact(np.full(shape, "ones" in call.op.name), dtype_of(call))


@operator("relax.full", "relax.full_like")
def _full(call: relax.Call, shape: Any, value: Tensor) -> Tensor:
    shape = shape.shape if isinstance(shape, Tensor) else shape
    return Tensor.of(np.broadcast_to(value.value, shape), np.broadcast_to(value.error, shape), dtype_of(call))


@operator("relax.arange")
def _arange(call: relax.Call, start: float, end: float, step: float) -> Tensor:
    return Tensor.exact(np.arange(start, end, step), dtype_of(call))


@operator("relax.eye", "relax.eye_like", units=0)
def _eye(call: relax.Call, n: Any, m: Any = 0, k: int = 0) -> Tensor:
    if isinstance(n, Tensor):
        return Tensor.exact(np.eye(*n.shape, k=m), dtype_of(call))
    return Tensor.exact(np.eye(n, m, k), dtype_of(call))


@operator("relax.one_hot", units=0)
def _one_hot(call: relax.Call, indices: Tensor, on: float, off: float) -> Tensor:
    depth, axis = int(call.attrs.depth), int(call.attrs.axis)
    hot = indices.value[..., None] == np.arange(depth)
    error = np.broadcast_to(np.where(indices.error > 0, np.inf, 0.0)[..., None], hot.shape)
    axis = axis if axis >= 0 else axis + hot.ndim
    return Tensor.of(np.moveaxis(np.where(hot, on, off), -1, axis), np.moveaxis(error, -1, axis), dtype_of(call))


@operator("relax.hamming_window", units=FUNCTION)
def _hamming_window(call: relax.Call, size: int, periodic: int, alpha: float, beta: float) -> Tensor:
    angles = 2 * np.pi * np.arange(size) / (size if periodic else size - 1)
    return Tensor.of(alpha - beta * np.cos(angles), 2.0**-20, dtype_of(call))
