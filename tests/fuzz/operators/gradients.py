"""Backward operators: adjoints by the text-book formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tests.fuzz.operators.elementwise import gelu, sigmoid
from tests.fuzz.operators.normalization import along, reciprocal_root, softmax
from tests.fuzz.operators.products import attention_scores
from tests.fuzz.operators.reductions import mean, scaled, stored, total, wide
from tests.fuzz.operators.registry import dtype_of, integers, operator
from tests.fuzz.values import FUNCTION, Tensor, elementwise, linear, moved


def _gelu_slope(x: np.ndarray) -> np.ndarray:
    distribution = np.where(x == 0, 0.5, gelu(x) / np.where(x == 0, 1, x))
    return np.asarray(distribution + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


def _gelu_tanh_slope(x: np.ndarray) -> np.ndarray:
    root, cubic = math.sqrt(2 / math.pi), 0.044715
    t = np.tanh(root * (x + cubic * x**3))
    return np.asarray(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * cubic * x * x))


def _silu_slope(x: np.ndarray) -> np.ndarray:
    return np.asarray(sigmoid(x) * (1 + x * sigmoid(-x)))


def _selu_slope(x: np.ndarray) -> np.ndarray:
    return np.asarray(1.0507009873554805 * np.where(x > 0, 1.0, 1.6732632423543772 * np.exp(np.minimum(x, 0))))


_SLOPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda y: np.where(y > 0, 1.0, 0.0),
    "gelu": _gelu_slope,
    "gelu_tanh": _gelu_tanh_slope,
    "silu": _silu_slope,
    "selu": _selu_slope,
    "sigmoid": lambda y: y * (1 - y),
    "tanh": lambda y: 1 - y * y,
}


def _through(x: Tensor, g: Tensor, slope: Callable[[np.ndarray], np.ndarray]) -> Tensor:
    slopes = elementwise(slope, wide(x)).rounded(None, 2 * FUNCTION)
    # Terms of a slope cancel where it is near zero.
    size = 1 + np.square(x.value)
    slopes = Tensor.of(slopes.value, slopes.error + 2.0**-21 * size, slopes.dtype)
    return stored(elementwise(np.multiply, slopes, wide(g)), g.dtype)


for _name, _slope in _SLOPES.items():

    @operator(f"relax.grad.{_name}_backward")
    def _activation(call: relax.Call, x: Tensor, g: Tensor, slope: Callable[..., np.ndarray] = _slope) -> Tensor:
        return _through(x, g, slope)


@operator("relax.grad.leakyrelu_backward")
def _leakyrelu(call: relax.Call, x: Tensor, g: Tensor) -> Tensor:
    alpha = float(call.attrs.alpha)
    return _through(x, g, lambda a: np.where(a > 0, 1.0, alpha))


@operator("relax.grad.softplus_backward")
def _softplus(call: relax.Call, x: Tensor, g: Tensor) -> Tensor:
    beta = float(call.attrs.beta)
    return _through(x, g, lambda a: sigmoid(beta * a))


def _times(x: Tensor, y: Tensor) -> Tensor:
    return elementwise(np.multiply, x, y).rounded(None)


def _minus(x: Tensor, y: Tensor) -> Tensor:
    return elementwise(np.subtract, x, y).rounded(None)


@operator("relax.grad.gated_add_backward")
def _gated_add(call: relax.Call, gate: Tensor, x: Tensor, g: Tensor) -> Any:
    return stored(_times(wide(g), wide(x)), gate.dtype), stored(_times(wide(g), wide(gate)), x.dtype)


@operator("relax.grad.softmax_backward")
def _softmax(call: relax.Call, y: Tensor, g: Tensor) -> Tensor:
    axis = int(call.attrs.axis) % y.value.ndim
    y, wide_g = wide(y), wide(g)
    return stored(_times(y, _minus(wide_g, total(_times(wide_g, y), (axis,)))), g.dtype)


@operator("relax.grad.log_softmax_backward")
def _log_softmax(call: relax.Call, y: Tensor, g: Tensor) -> Tensor:
    axis = int(call.attrs.axis) % y.value.ndim
    powers = elementwise(np.exp, wide(y)).rounded(None, FUNCTION)
    return stored(_minus(wide(g), _times(powers, total(wide(g), (axis,)))), g.dtype)


@operator("relax.grad.broadcast_backward")
def _broadcast(call: relax.Call, g: Tensor) -> Tensor:
    axes = tuple(axis % g.value.ndim for axis in integers(call.attrs.axis))
    return stored(total(wide(g), axes, keep=False), dtype_of(call))


def _normalized(
    call: relax.Call, x: Tensor, gamma: Tensor, g: Tensor, over: tuple[int, ...], scales: tuple[int, ...], centred: bool
) -> Any:
    """Of what is normalized over some axes, and scaled by parameters along others."""
    x, wide_g = wide(x), wide(g)
    h = _times(wide_g, along(gamma, scales, x))
    inner = _minus(x, mean(x, over)) if centred else x
    root = reciprocal_root(mean(_times(inner, inner), over), float(call.attrs.epsilon))
    normal = _times(inner, root)
    passed = _minus(h, mean(h, over)) if centred else h
    dx = _times(root, _minus(passed, _times(normal, mean(_times(h, normal), over))))
    rest = tuple(axis for axis in range(x.value.ndim) if axis not in scales)
    dgamma, dbeta = total(_times(wide_g, normal), rest, keep=False), total(wide_g, rest, keep=False)
    fields = (stored(dx, g.dtype), stored(dgamma, gamma.dtype), stored(dbeta, gamma.dtype))
    return fields if centred else fields[:2]


@operator("relax.grad.layer_norm_backward", "relax.grad.rms_norm_backward", units=2)
def _layer_norm(call: relax.Call, x: Tensor, gamma: Tensor, g: Tensor) -> Any:
    axes = tuple(axis % x.value.ndim for axis in integers(call.attrs.axes))
    return _normalized(call, x, gamma, g, axes, axes, call.op.name == "relax.grad.layer_norm_backward")


@operator("relax.grad.instance_norm_backward", units=2)
def _instance_norm(call: relax.Call, x: Tensor, gamma: Tensor, g: Tensor) -> Any:
    axes = tuple(axis % x.value.ndim for axis in integers(call.attrs.axes))
    return _normalized(call, x, gamma, g, axes, (int(call.attrs.channel_axis) % x.value.ndim,), True)


@operator("relax.grad.group_norm_backward", units=2)
def _group_norm(call: relax.Call, x: Tensor, gamma: Tensor, g: Tensor) -> Any:
    channel, groups = int(call.attrs.channel_axis) % x.value.ndim, int(call.attrs.num_groups)
    split = (*x.shape[:channel], groups, x.shape[channel] // groups, *x.shape[channel + 1 :])
    inside = (axis % x.value.ndim for axis in integers(call.attrs.axes))
    over = (channel + 1, *(axis + (axis > channel) for axis in inside))
    parts = (moved(lambda a: a.reshape(split), tensor) for tensor in (x, g))
    scales = moved(lambda a: a.reshape(groups, -1), gamma)
    results = _normalized(call, next(parts), scales, next(parts), over, (channel, channel + 1), True)
    shapes = (x.shape, gamma.shape, gamma.shape)
    return tuple(moved(lambda a, s=s: a.reshape(s), r) for r, s in zip(results, shapes, strict=True))


@operator("relax.grad.batch_norm_backward", units=2)
def _batch_norm(call: relax.Call, x: Tensor, gamma: Tensor, g: Tensor) -> Any:
    channel = int(call.attrs.axis) % x.value.ndim
    over = tuple(axis for axis in range(x.value.ndim) if axis != channel)
    return _normalized(call, x, gamma, g, over, (channel,), True)


@operator("relax.grad.take_backward")
def _take(call: relax.Call, g: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    axis = int(call.attrs.axis) % x.value.ndim
    index = (slice(None),) * axis + (indices.value,)

    def scatter(a: np.ndarray) -> np.ndarray:
        result = np.zeros(x.shape)
        np.add.at(result, index, a)
        return result

    return linear(scatter, max(indices.value.size, 1), g, dtype=dtype_of(call))


def _product(subscripts: str, x: Tensor, y: Tensor) -> Tensor:
    return linear(lambda a, b: np.einsum(subscripts, a, b), max(x.value.shape + y.value.shape), x, y).rounded(None)


@operator("relax.grad.attention_backward", units=2)
def _attention(call: relax.Call, q: Tensor, k: Tensor, v: Tensor, g: Tensor, bias: Tensor | None = None) -> Any:
    """Of (batch, length, heads, width): queries are numbered by q, keys by k, widths by d."""
    scale = 1 / math.sqrt(q.shape[-1]) if call.attrs.scale is None else float(call.attrs.scale)
    queries, keys, values, wide_g = (wide(x) for x in (q, k, v, g))
    low = None if q.dtype == "float32" else q.dtype  # that both factors of a product may have
    weights = softmax(attention_scores(call, queries, keys, scale, bias), -1).rounded(low)
    of_weights = _product("bqhd,bkhd->bhqk", wide_g, values)
    of_scores = _times(weights, _minus(of_weights, total(_times(of_weights, weights), (3,)))).rounded(low)
    results = [
        scaled(_product("bhqk,bkhd->bqhd", of_scores, keys), scale),
        scaled(_product("bhqk,bqhd->bkhd", of_scores, queries), scale),
        _product("bhqk,bqhd->bkhd", weights, wide_g),
    ]
    results += [] if bias is None else [of_scores]
    kept = (q, k, v) if bias is None else (q, k, v, bias)
    return tuple(stored(result, like.dtype) for result, like in zip(results, kept, strict=True))
