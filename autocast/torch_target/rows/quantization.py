"""Numbers of 8 bits with a scale and a zero."""

from __future__ import annotations

import torch

from autocast.torch_target.asked import Asked, Row, Value


def _along_axis(asked: Asked, index: int) -> Value:
    """A scale or a zero: of all elements, or of each channel."""
    type_, value = asked.call.args[index].ty, asked.wide(index)
    if type_.ndim == 0:
        return value
    return value.reshape([-1 if axis == asked.axis() else 1 for axis in range(asked.rank())])


def _quantize(asked: Asked) -> Value:
    bounds = torch.iinfo(asked.dtype)
    steps = torch.round(asked.wide(0) / _along_axis(asked, 1)) + _along_axis(asked, 2)
    return torch.clamp(steps, bounds.min, bounds.max).to(asked.dtype)


def _dequantize(asked: Asked) -> Value:
    steps = asked.args[0].to(torch.int32) - _along_axis(asked, 2).to(torch.int32)
    return (steps * _along_axis(asked, 1)).to(asked.dtype)


ROWS: dict[str, Row] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
}
