"""Softmax and normalizations, which compute in float32 whatever they are stored in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from autocast.kernels.storage import LOW
from autocast.torch_target.asked import Asked, Row, Value, torch_dtype
from autocast.torch_target.rows.collectives import means_over_ranks
from autocast.torch_target.statistics import is_over_batch, over_batch

aten: Any = torch.ops.aten


def _along(asked: Asked, vector: Value, axes: list[int]) -> Value:
    """A parameter that lies along some axes, to be broadcast with the data."""
    rank = asked.rank()
    if axes == list(range(rank - len(axes), rank)):
        return vector
    sizes = iter([vector.size(i) for i in range(len(axes))])
    return vector.reshape([next(sizes) if axis in axes else 1 for axis in range(rank)])


def _scaled(asked: Asked, x: Value, gamma: Value, beta: Value | None, axes: list[int]) -> Value:
    if getattr(asked.attrs, "scale", True):
        x = x * _along(asked, gamma, axes)
    if beta is not None and getattr(asked.attrs, "center", True):
        x = x + _along(asked, beta, axes)
    return x


def _normalized(x: Value, over: list[int], epsilon: float) -> Value:
    centred = x - torch.mean(x, over, keepdim=True)
    variance = torch.mean(centred * centred, over, keepdim=True)
    return centred * torch.rsqrt(variance + epsilon)


def _mixed(asked: Asked, count: int) -> tuple[Value, ...] | None:
    """The operands, where torch normalizes data of 16 bits by statistics and parameters in float32 itself: all of the
    latter are of one dtype, float32 or the data's."""
    data, *others = (str(arg.ty.dtype) for arg in asked.call.args[:count])
    return asked.args[:count] if set(others) <= {"float32"} or set(others) <= {data} else None


def _layer_norm(asked: Asked) -> Value:
    attrs, axes = asked.attrs, sorted(asked.axes("axes"))
    epsilon, rank = float(attrs.epsilon), asked.rank()
    if axes != list(range(rank - len(axes), rank)):
        result = _normalized(asked.wide(0), axes, epsilon)
        return asked.stored(_scaled(asked, result, asked.wide(1), asked.wide(2), axes))
    x, gamma, beta = _mixed(asked, 3) or tuple(asked.wide(i) for i in range(3))
    sizes = [asked.shape_of(0)[axis] for axis in axes]
    result = F.layer_norm(x, sizes, gamma if attrs.scale else None, beta if attrs.center else None, epsilon)
    return asked.stored(result)


def _rms_norm(asked: Asked) -> Value:
    x, axes = asked.wide(0), sorted(asked.axes("axes"))
    squares = torch.mean(x * x, axes, keepdim=True)
    result = x * torch.rsqrt(squares + float(asked.attrs.epsilon))
    return asked.stored(_scaled(asked, result, asked.wide(1), None, axes))


def _group_norm(asked: Asked) -> Value:
    attrs, channel = asked.attrs, asked.axis("channel_axis")
    x, groups, rank = asked.wide(0), int(attrs.num_groups), asked.rank()
    over = sorted(asked.axes("axes"))
    if channel == 1 and over == list(range(2, rank)) and attrs.scale and attrs.center:
        return asked.stored(F.group_norm(x, groups, asked.wide(1), asked.wide(2), float(attrs.epsilon)))
    shape = asked.shape_of(0)
    split = [*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :]]
    inner = [channel + 1, *(axis if axis < channel else axis + 1 for axis in over)]
    result = _normalized(x.reshape(split), inner, float(attrs.epsilon)).reshape(shape)
    return asked.stored(_scaled(asked, result, asked.wide(1), asked.wide(2), [channel]))


def _instance_norm(asked: Asked) -> Value:
    result = _normalized(asked.wide(0), asked.axes("axes"), float(asked.attrs.epsilon))
    return asked.stored(_scaled(asked, result, asked.wide(1), asked.wide(2), [asked.axis("channel_axis")]))


def _batch_norm(asked: Asked) -> Value:
    attrs, epsilon = asked.attrs, float(asked.attrs.epsilon)
    mixed = _mixed(asked, 5) if asked.axis() == 1 and asked.rank() > 1 else None
    if mixed and not attrs.training:
        x, gamma, beta, mean, variance = mixed
        gamma, beta = (gamma if attrs.scale else None, beta if attrs.center else None)
        return F.batch_norm(x, mean, variance, gamma, beta, eps=epsilon), mean, variance
    x, gamma, beta, mean, variance = (asked.wide(i) for i in range(5))
    kept = (mean, variance)
    if not attrs.training:
        return _with_statistics(asked, x, gamma, beta, mean, variance, kept)
    if is_over_batch(asked.call):
        gamma, beta = (gamma if attrs.scale else None, beta if attrs.center else None)
        result, mean, reciprocal = over_batch(asked.args[0], gamma, beta, epsilon)
        variance = torch.clamp(1 / (reciprocal * reciprocal) - epsilon, 0)
        return _as_declared(asked, (result, *_moved(asked, kept, (mean, variance))))
    over = [axis for axis in range(asked.rank()) if axis != asked.axis()]
    mean = torch.mean(x, over)
    variance = torch.var(x, over, correction=0)
    return _with_statistics(asked, x, gamma, beta, mean, variance, _moved(asked, kept, (mean, variance)))


def _batch_norm_backward(asked: Asked) -> Value:
    x, gamma, g = asked.args[0], asked.wide(1), asked.args[2]
    if asked.is_low(0) != asked.is_low(2):
        x, g = asked.wide(0), asked.wide(2)
    attrs, epsilon = asked.attrs, float(asked.attrs.epsilon)
    _, mean, reciprocal = over_batch(x, None, None, epsilon)
    kept = (None, None, mean, reciprocal, True, epsilon, [True, True, True])
    results = aten.native_batch_norm_backward(g, x, gamma if attrs.scale else None, *kept)
    return _as_declared(asked, [results[i] for i in range(3)])


def _moved(asked: Asked, running: tuple[Value, ...], batch: tuple[Value, ...]) -> tuple[Value, ...]:
    """The next running statistics."""
    momentum = float(asked.attrs.momentum)
    return tuple(old * (1 - momentum) + new * momentum for old, new in zip(running, batch, strict=True))


def _sync_batch_norm(asked: Asked) -> Value:
    x, gamma, beta, *running = (asked.wide(i) for i in range(5))
    channel = asked.axis()
    over = [axis for axis in range(asked.rank()) if axis != channel]
    own = _elements(asked, over)
    offset = torch.mean(x, over) - running[0]
    square = torch.var(x, over, correction=0) + offset * offset
    offset, square, elements = means_over_ranks([offset * own, square * own, torch.full_like(offset, own)])
    offset, square = offset / elements, square / elements
    mean, variance = running[0] + offset, torch.clamp(square - offset * offset, 0)
    moved = _moved(asked, tuple(running), (mean, variance))
    return _with_statistics(asked, x, gamma, beta, mean, variance, (*moved, mean, variance, elements.max()))


def _elements(asked: Asked, over: list[int]) -> int:
    """How many elements a channel of the first argument has."""
    return math.prod(asked.shape_of(0)[axis] for axis in over)


def _sync_batch_norm_backward(asked: Asked) -> Value:
    x, gamma, g, mean, variance = (asked.wide(i) for i in range(5))
    channel = asked.axis()
    over = [axis for axis in range(asked.rank()) if axis != channel]
    reciprocal = torch.rsqrt(variance + float(asked.attrs.epsilon))
    centred = x - _along(asked, mean, [channel])
    total, along = torch.sum(g, over), torch.sum(g * centred, over)
    own = torch.full_like(total, _elements(asked, over))
    of_mean, of_variance, elements = means_over_ranks([total, along, own])
    slope = of_variance * reciprocal * reciprocal / elements
    factor = reciprocal * gamma if asked.attrs.scale else reciprocal
    of_data = g - _along(asked, of_mean / elements, [channel]) - centred * _along(asked, slope, [channel])
    results = (of_data * _along(asked, factor, [channel]), along * reciprocal, total)
    return _as_declared(asked, results)


def _with_statistics(
    asked: Asked, x: Value, gamma: Value, beta: Value, mean: Value, variance: Value, kept: tuple[Value, ...]
) -> Value:
    """The data normalized by mean and variance, and after it what is `kept`."""
    attrs, channel = asked.attrs, asked.axis()
    scale = torch.rsqrt(variance + float(attrs.epsilon))
    if bool(attrs.scale):
        scale = scale * gamma
    result = (x - _along(asked, mean, [channel])) * _along(asked, scale, [channel])
    if bool(attrs.center):
        result = result + _along(asked, beta, [channel])
    return _as_declared(asked, (result, *kept))


def _as_declared(asked: Asked, results: Sequence[Value]) -> Value:
    """Results in the dtypes of the call's type, which are those that was computed in or narrower ones."""
    dtypes = [str(field.dtype) for field in asked.call.ty.fields]
    return tuple(
        value.to(torch_dtype(dtype)) if dtype in LOW else value for value, dtype in zip(results, dtypes, strict=True)
    )


ROWS: dict[str, Row] = {
    "nn.softmax": lambda asked: F.softmax(asked.args[0], int(asked.attrs.axis)),
    "nn.log_softmax": lambda asked: asked.stored(F.log_softmax(asked.wide(0), int(asked.attrs.axis))),
    "nn.layer_norm": _layer_norm,
    "nn.rms_norm": _rms_norm,
    "nn.group_norm": _group_norm,
    "nn.instance_norm": _instance_norm,
    "nn.batch_norm": _batch_norm,
    "grad.batch_norm_backward": _batch_norm_backward,
    "collective.batch_norm": _sync_batch_norm,
    "collective.batch_norm_backward": _sync_batch_norm_backward,
}
