"""Images, and what has as many results as the data say."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F

from autocast.errors import UnsupportedError
from autocast.operators.resizing import places, taps
from autocast.torch_target.asked import Asked, Row, Value, torch_dtype
from autocast.torch_target.layouts import channels_first, spatial, to_layout


def _resize(asked: Asked) -> Value:
    """By torch's own function, or, axis by axis, the pixels that a result is made of, each by its weight."""
    attrs, layout = asked.attrs, str(asked.attrs.layout)
    mode = str(attrs.coordinate_transformation_mode)
    x, axes = channels_first(asked.wide(0), layout), spatial(layout)
    if (name := _interpolated(attrs, len(axes))) and asked.dtype.is_floating_point:
        x = F.interpolate(x, asked.args[1], mode=name, align_corners=mode == "align_corners")
        return asked.stored(to_layout(x, f"NC{axes}", layout)).to(asked.dtype)
    wide = torch.float32 if asked.is_low() else torch_dtype(str(asked.call.args[0].ty.dtype))
    for axis, out in enumerate(asked.args[1], 2):
        size = x.size(axis)
        at = places(torch.arange(out, dtype=torch.float64), size, out, mode)
        if at is None:
            raise UnsupportedError(
                f"to_torch: {asked.name} has coordinate_transformation_mode={mode!r}, which torch does not have; "
                "expected align_corners, asymmetric or half_pixel"
            )
        pixels = [(torch.clamp(i, 0, size - 1).to(torch.int64), weight) for i, weight in taps(at, size, attrs)]
        if len(pixels) == 1:
            x = x.index_select(axis, pixels[0][0])
            continue
        along = [-1 if i == axis else 1 for i in range(2 + len(axes))]
        parts = [x.index_select(axis, i) * weight.to(wide).reshape(along) for i, weight in pixels]
        x = functools.reduce(torch.add, parts)
    return asked.stored(to_layout(x, f"NC{axes}", layout)).to(asked.dtype)


def _interpolated(attrs: Any, rank: int) -> str:
    """What torch calls a way to resize; nothing where it has not the very same."""
    if str(attrs.coordinate_transformation_mode) not in ("half_pixel", "align_corners"):
        return ""
    if str(attrs.method) == "linear":
        return {2: "bilinear", 3: "trilinear"}[rank]
    is_torchs = rank == 2 and str(attrs.method) == "cubic" and (attrs.cubic_alpha, attrs.cubic_exclude) == (-0.75, 0)
    return "bicubic" if is_torchs else ""


def _affine_grid(asked: Asked) -> Value:
    theta, (height, width) = asked.wide(0), asked.args[1]
    grid = F.affine_grid(theta, [theta.size(0), 1, height, width], align_corners=bool(asked.attrs.align_corners))
    return asked.stored(grid.permute([0, 3, 1, 2]))


def _grid_sample(asked: Asked) -> Value:
    attrs = asked.attrs
    mode, padding = str(attrs.method), str(attrs.padding_mode)
    known = mode in ("bilinear", "nearest", "bicubic") and padding in ("zeros", "border", "reflection")
    if not known or str(attrs.layout) != "NCHW":
        raise UnsupportedError(
            f"to_torch: {asked.name} has method={mode}, padding_mode={padding}, "
            f"layout={attrs.layout!s}, which torch does not have; expected bilinear, zeros and NCHW, say"
        )
    grid = asked.wide(1).permute([0, 2, 3, 1])
    aligned = bool(attrs.align_corners)
    return asked.stored(F.grid_sample(asked.wide(0), grid, mode=mode, padding_mode=padding, align_corners=aligned))


def _nonzero(asked: Asked) -> Value:
    return torch.nonzero(asked.args[0]).permute([1, 0]).to(asked.dtype)


ROWS: dict[str, Row] = {
    "image.resize2d": _resize,
    "image.resize3d": _resize,
    "image.affine_grid": _affine_grid,
    "image.grid_sample": _grid_sample,
    "nonzero": _nonzero,
}
