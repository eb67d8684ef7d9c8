"""Reductions, scans, and losses. Sums of 16 bits are added in float32, in torch, too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from autocast.ir import dtype_of
from autocast.torch_target.asked import Asked, Row, Value


def _over_axes(function: Callable[..., Any]) -> Row:
    def row(asked: Asked) -> Value:
        axes = asked.axes()
        x = asked.wide(0)
        if not axes:
            return asked.stored(x.to(asked.dtype))
        return function(x, axes, keepdim=bool(asked.attrs.keepdims)).to(asked.dtype)

    return row


def _average(asked: Asked, x: Value, axes: list[int], *, keep: bool) -> Value:
    """The mean; of whole numbers, the whole part of it."""
    if not axes:
        return x
    if asked.dtype.is_floating_point:
        return torch.mean(x, axes, keepdim=keep)
    count = math.prod(x.size(axis) for axis in axes)
    return torch.div(torch.sum(x, axes, keepdim=keep), count, rounding_mode="trunc")


def _mean(asked: Asked) -> Value:
    result = _average(asked, asked.wide(0), asked.axes(), keep=bool(asked.attrs.keepdims))
    return asked.stored(result.to(asked.dtype))


def _variance(asked: Asked) -> Value:
    if not asked.dtype.is_floating_point:
        x, axes = asked.args[0], asked.axes()
        apart = x - _average(asked, x, axes, keep=True)
        return _average(asked, apart * apart, axes, keep=bool(asked.attrs.keepdims))
    return torch.var(asked.wide(0), asked.axes(), correction=0, keepdim=bool(asked.attrs.keepdims)).to(asked.dtype)


def _deviation(asked: Asked) -> Value:
    return torch.std(asked.wide(0), asked.axes(), correction=0, keepdim=bool(asked.attrs.keepdims)).to(asked.dtype)


def _extreme(function: Callable[..., Any]) -> Row:
    def row(asked: Asked) -> Value:
        axes = asked.axes()
        return function(asked.args[0], axes, keepdim=bool(asked.attrs.keepdims)) if axes else asked.args[0]

    return row


def _product(asked: Asked) -> Value:
    x, keep = asked.wide(0), bool(asked.attrs.keepdims)
    for axis in sorted(asked.axes(), reverse=True):
        x = torch.prod(x, axis, keepdim=keep)
    return x.to(asked.dtype)


def _scan(function: Callable[..., Any], start: int) -> Row:
    def row(asked: Asked) -> Value:
        x = asked.wide(0)
        flat = asked.attrs.axis is None
        axis = 0 if flat else asked.axis()
        x = x.reshape(-1) if flat else x
        result = function(x, axis, dtype=None if asked.is_low() else asked.dtype)
        if bool(asked.attrs.exclusive):
            shifted = torch.narrow(result, axis, 0, result.size(axis) - 1)
            first = torch.full_like(torch.narrow(result, axis, 0, 1), start)
            result = torch.cat([first, shifted], axis)
        return result.to(asked.dtype)

    return row


def _index(function: Callable[..., Any]) -> Row:
    def row(asked: Asked) -> Value:
        keep, axis = bool(asked.attrs.keepdims), asked.attrs.axis
        x = asked.args[0].to(torch.uint8) if dtype_of(asked.call.args[0]) == "bool" else asked.args[0]
        if axis is None:
            found = function(x.reshape(-1), 0)
            return found.reshape([1] * asked.rank() if keep else []).to(asked.dtype)
        return function(x, int(axis), keepdim=keep).to(asked.dtype)

    return row


def _median(asked: Asked) -> Value:
    x, axes = asked.args[0], asked.axes() if asked.attrs.axis else [*range(asked.rank())]
    if len(axes) == 1 and asked.attrs.axis:
        # Of a tensor that is expanded along the axis, torch 2.13 reads what is beyond its memory.
        found = torch.median(x.contiguous(), axes[0], keepdim=bool(asked.attrs.keepdims))
        return found[0], found[1]
    if len(axes) == asked.rank():
        return torch.median(x).reshape(asked.shape)
    rest = [i for i in range(asked.rank()) if i not in axes]
    rows = torch.permute(x, (*rest, *axes)).flatten(len(rest)).contiguous()
    return torch.median(rows, -1)[0].reshape(asked.shape)


def _cross_entropy(asked: Asked) -> Value:
    logits, labels = asked.wide(0), asked.args[1]
    return (
        F.cross_entropy(
            logits.reshape(-1, logits.size(-1)),
            labels.reshape(-1).to(torch.int64),
            ignore_index=int(asked.attrs.ignore_index),
            reduction=str(asked.attrs.reduction),
            label_smoothing=float(asked.attrs.label_smoothing),
        )
        .reshape(asked.shape)
        .to(asked.dtype)
    )


def _nll_loss(asked: Asked) -> Value:
    weights = asked.wide(2) if len(asked.args) > 2 else None
    return F.nll_loss(
        asked.wide(0),
        asked.args[1].to(torch.int64),
        weights,
        ignore_index=int(asked.attrs.ignore_index),
        reduction=str(asked.attrs.reduction),
    ).to(asked.dtype)


def _with_logits(asked: Asked) -> Value:
    products = torch.sum(asked.wide(0) * asked.wide(1))
    rows = asked.shape_of(0)[0] if asked.rank() > 1 else 1
    return (-products / rows).to(asked.dtype)


ROWS: dict[str, Row] = {
    "sum": _over_axes(torch.sum),
    "mean": _mean,
    "variance": _variance,
    "std": _deviation,
    "max": _extreme(torch.amax),
    "min": _extreme(torch.amin),
    "prod": _product,
    "cumsum": _scan(torch.cumsum, 0),
    "cumprod": _scan(torch.cumprod, 1),
    "argmax": _index(torch.argmax),
    "argmin": _index(torch.argmin),
    "median": _median,
    "nn.cross_entropy": _cross_entropy,
    "nn.cross_entropy_with_logits": _with_logits,
    "nn.nll_loss": _nll_loss,
}
