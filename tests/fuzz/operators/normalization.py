"""Softmax and normalizations."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tests.fuzz.operators.elementwise import divide
from tests.fuzz.operators.reductions import mean, scaled, stored, total, variance, wide
from tests.fuzz.operators.registry import dtype_of, integers, operator
from tests.fuzz.values import FUNCTION, Tensor, elementwise


def _extreme(x: Tensor, axis: int) -> Tensor:
    largest = x.value.max(axis, keepdims=True, initial=-np.inf)
    return Tensor.of(largest, x.error.max(axis, keepdims=True, initial=0.0), x.dtype)


def softmax(x: Tensor, axis: int) -> Tensor:
    """The softmax of float32 numbers."""
    shifted = elementwise(np.subtract, x, _extreme(x, axis)).rounded(None)
    powers = elementwise(np.exp, shifted).rounded(None, FUNCTION)
    return divide(None, powers, total(powers, (axis % x.value.ndim,))).rounded(None, 2)


def log_softmax(x: Tensor, axis: int) -> Tensor:
    """Its logarithm."""
    shifted = elementwise(np.subtract, x, _extreme(x, axis)).rounded(None)
    sums = total(elementwise(np.exp, shifted).rounded(None, FUNCTION), (axis % x.value.ndim,))
    logarithm = elementwise(np.log, sums).rounded(None, FUNCTION)
    # An error of the sum's last digit is not small beside a logarithm near zero.
    logarithm = Tensor.of(logarithm.value, logarithm.error + 2.0**-21, logarithm.dtype)
    return elementwise(np.subtract, shifted, logarithm).rounded(None)


@operator("relax.nn.softmax", "relax.nn.log_softmax", units=2)
def _softmax(call: relax.Call, x: Tensor) -> Tensor:
    function = softmax if call.op.name == "relax.nn.softmax" else log_softmax
    return stored(function(wide(x), int(call.attrs.axis)), x.dtype)


def reciprocal_root(x: Tensor, epsilon: float) -> Tensor:
    """1 / sqrt(x + epsilon) of what is never below 0."""
    widened = Tensor.of(x.value + epsilon, x.error, x.dtype).rounded(None)
    return elementwise(lambda a: 1 / np.sqrt(np.maximum(a, epsilon)), widened).rounded(None, 4)


def along(x: Tensor, axes: tuple[int, ...], like: Tensor) -> Tensor:
    """A parameter of some axes, shaped to be broadcast to `like`."""
    shape = [like.shape[axis] if axis in axes else 1 for axis in range(like.value.ndim)]
    return Tensor(x.value.reshape(shape), x.error.reshape(shape), "float32")


def normalized(x: Tensor, axes: tuple[int, ...], epsilon: float) -> Tensor:
    """Differences from the mean, over the deviation."""
    centred = elementwise(np.subtract, x, mean(x, axes)).rounded(None)
    return elementwise(np.multiply, centred, reciprocal_root(variance(x, axes), epsilon)).rounded(None)


def affine(x: Tensor, factor: Tensor | None, offset: Tensor | None) -> Tensor:
    """factor * x + offset."""
    x = x if factor is None else elementwise(np.multiply, x, factor).rounded(None)
    return x if offset is None else elementwise(np.add, x, offset).rounded(None)


@operator("relax.nn.layer_norm", units=2)
def _layer_norm(call: relax.Call, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    axes = tuple(axis % x.value.ndim for axis in integers(call.attrs.axes))
    result = normalized(wide(x), axes, float(call.attrs.epsilon))
    return stored(affine(result, along(gamma, axes, x), along(beta, axes, x)), dtype_of(call))


@operator("relax.nn.rms_norm", units=2)
def _rms_norm(call: relax.Call, x: Tensor, weight: Tensor) -> Tensor:
    axes = tuple(axis % x.value.ndim for axis in integers(call.attrs.axes))
    squares = mean(elementwise(np.square, wide(x)).rounded(None), axes)
    result = elementwise(np.multiply, wide(x), reciprocal_root(squares, float(call.attrs.epsilon))).rounded(None)
    return stored(affine(result, along(weight, axes, x), None), dtype_of(call))


@operator("relax.nn.group_norm", units=2)
def _group_norm(call: relax.Call, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    groups, channel = int(call.attrs.num_groups), int(call.attrs.channel_axis) % x.value.ndim
    axes = tuple(axis % x.value.ndim for axis in integers(call.attrs.axes))
    shape = [*x.shape[:channel], groups, x.shape[channel] // groups, *x.shape[channel + 1 :]]
    inner = Tensor(x.value.reshape(shape), x.error.reshape(shape), wide(x).dtype)
    over = (channel + 1, *(axis if axis < channel else axis + 1 for axis in axes))
    result = normalized(inner, over, float(call.attrs.epsilon))
    result = Tensor(result.value.reshape(x.shape), result.error.reshape(x.shape), result.dtype)
    return stored(affine(result, along(gamma, (channel,), x), along(beta, (channel,), x)), dtype_of(call))


@operator("relax.nn.instance_norm", units=2)
def _instance_norm(call: relax.Call, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    channel = int(call.attrs.channel_axis) % x.value.ndim
    axes = tuple(axis % x.value.ndim for axis in integers(call.attrs.axes))
    result = normalized(wide(x), axes, float(call.attrs.epsilon))
    return stored(affine(result, along(gamma, (channel,), x), along(beta, (channel,), x)), dtype_of(call))


@operator("relax.nn.batch_norm", units=2)
def _batch_norm(
    call: relax.Call, x: Tensor, gamma: Tensor, beta: Tensor, moving_mean: Tensor, moving_var: Tensor
) -> Any:
    attrs = call.attrs
    channel = int(attrs.axis) % x.value.ndim
    axes = tuple(axis for axis in range(x.value.ndim) if axis != channel)
    means, variances = wide(moving_mean), wide(moving_var)
    statistics: tuple[Tensor, Tensor] = (means, variances)
    if bool(attrs.training):
        new = mean(wide(x), axes), variance(wide(x), axes)
        means, variances = (Tensor(s.value.reshape(-1), s.error.reshape(-1), s.dtype) for s in new)
        momentum = float(attrs.momentum)
        statistics = tuple(  # type: ignore[assignment]
            elementwise(np.add, scaled(wide(old), 1 - momentum), scaled(s, momentum)).rounded(None)
            for old, s in zip((moving_mean, moving_var), (means, variances), strict=True)
        )
    centred = elementwise(np.subtract, wide(x), along(means, (channel,), x)).rounded(None)
    root = along(reciprocal_root(variances, float(attrs.epsilon)), (channel,), x)
    result = elementwise(np.multiply, centred, root).rounded(None)
    factor = along(gamma, (channel,), x) if bool(attrs.scale) else None
    offset = along(beta, (channel,), x) if bool(attrs.center) else None
    # A factor may be folded into what comes before, a difference into two products that cancel.
    slack = np.abs(x.value) + np.abs(along(means, (channel,), x).value)
    folded = 2.0**-21 * slack * np.abs(root.value) * (1 if factor is None else np.abs(factor.value))
    result = affine(result, factor, offset)
    result = Tensor.of(result.value, result.error + folded, result.dtype)
    return (stored(result, x.dtype), *(stored(s, x.dtype) for s in statistics))
