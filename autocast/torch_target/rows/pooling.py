"""Pooling, and resizing of images."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from autocast.errors import UnsupportedError
from autocast.torch_target.asked import Asked, Row, Value
from autocast.torch_target.layouts import channels_first, spatial, to_layout


def _windows(asked: Asked) -> tuple[Value, str, tuple[int, ...]]:
    """The data with channels first, the letters of its other axes, and the padding on either side."""
    layout = str(asked.attrs.layout)
    return channels_first(asked.wide(0), layout), spatial(layout), asked.integers("padding")


def _finished(asked: Asked, x: Value, axes: str, surrounded: bool = False) -> Value:
    """A result with channels first, in the layout and the dtype that it shall have.

    torch lets no window begin in the padding, and takes what is `surrounded` for data.
    """
    x = to_layout(x, f"NC{axes}", str(asked.attrs.out_layout))
    if surrounded and asked.attrs.ceil_mode:
        x = x[tuple(slice(size) for size in asked.shape)]
    return asked.stored(x) if asked.dtype.is_floating_point else x.to(asked.dtype)


def _divisible(asked: Asked, x: Value) -> Value:
    """Numbers whose means torch computes: of no integers."""
    return x if asked.dtype.is_floating_point else x.to(torch.float64)


def _max_pool(asked: Asked) -> Value:
    x, axes, widths = _windows(asked)
    x = x if asked.dtype.is_floating_point else x.to(torch.int64)  # torch has them for no other integers
    function: Any = getattr(F, f"max_pool{len(axes)}d")
    rank = len(axes)
    padding: Any = widths[:rank]
    surrounded = widths[:rank] != widths[rank:] or any(
        2 * w > p for w, p in zip(padding, asked.integers("pool_size"), strict=True)
    )
    if surrounded:
        x, padding = _surrounded(x, widths, float("-inf")), 0
    size, strides, dilation = (asked.integers(name) for name in ("pool_size", "strides", "dilation"))
    result = function(x, size, strides, padding, dilation, ceil_mode=bool(asked.attrs.ceil_mode))
    return _finished(asked, result, axes, surrounded)


def _surrounded(x: Value, widths: tuple[int, ...], value: float) -> Value:
    rank = len(widths) // 2
    pairs = [(widths[axis], widths[rank + axis]) for axis in reversed(range(rank))]
    return F.pad(x, [width for pair in pairs for width in pair], value=value)


def _avg_pool(asked: Asked) -> Value:
    if any(step != 1 for step in asked.integers("dilation")):
        raise UnsupportedError(
            f"to_torch: relax.{asked.name} has dilation={asked.integers('dilation')}, expected 1: torch has no means "
            "of elements that lie apart. autocast.compile runs the model with kernels of its own"
        )
    x, axes, widths = _windows(asked)
    x = _divisible(asked, x)
    rank, counted = len(axes), bool(asked.attrs.count_include_pad)
    function: Any = getattr(F, f"avg_pool{rank}d")
    size, strides = asked.integers("pool_size"), asked.integers("strides")
    ceil = bool(asked.attrs.ceil_mode)
    padding = widths[:rank]
    fits = widths[:rank] == widths[rank:] and all(2 * w <= p for w, p in zip(padding, size, strict=True))
    surrounded = not fits or (rank == 3 and any(padding))  # torch's volumes must fit without the padding
    if not surrounded:
        result = function(x, size, strides, padding, ceil, counted)
    else:
        ones = torch.ones_like(x)
        ones = _surrounded(ones, widths, 1.0 if counted else 0.0)
        sums, counts = (function(part, size, strides, 0, ceil, True) for part in (_surrounded(x, widths, 0.0), ones))
        result = sums / counts
    return _finished(asked, result, axes, surrounded)


def _adaptive(asked: Asked) -> Value:
    layout = str(asked.attrs.layout)
    x, axes = channels_first(_divisible(asked, asked.wide(0)), layout), spatial(layout)
    size = (
        [x.size(2 + i) for i in range(len(axes))] if asked.attrs.output_size is None else asked.integers("output_size")
    )
    size = list(size) * len(axes) if len(size) == 1 else list(size)
    function: Any = getattr(F, f"adaptive_avg_pool{len(axes)}d")
    return _finished(asked, function(x, size), axes)


ROWS: dict[str, Row] = {
    **{f"nn.max_pool{rank}d": _max_pool for rank in (1, 2, 3)},
    **{f"nn.avg_pool{rank}d": _avg_pool for rank in (1, 2, 3)},
    **{f"nn.adaptive_avg_pool{rank}d": _adaptive for rank in (1, 2, 3)},
}
