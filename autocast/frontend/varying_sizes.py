"""Functions of torch that its export computes for the sizes of the example alone, written with others that it exports
for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F


def _varies(sizes: Sequence[Any]) -> bool:
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, tuple | list) else value


def _max_pool1d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    if return_indices or not _varies(input.shape):
        native: Callable[..., Any] = F.max_pool1d
        return native(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    steps = kernel_size if stride is None or stride == () else stride
    window = ((1, _one(kernel_size)), (1, _one(steps)), (0, _one(padding)), (1, _one(dilation)))
    return F.max_pool2d(input.unsqueeze(-2), *window, ceil_mode).squeeze(-2)


def _linspace(start: Any, end: Any, steps: Any, **options: Any) -> torch.Tensor:
    """From both ends to the middle, as torch computes it."""
    if not _varies([steps]):
        return torch.linspace(start, end, steps, **options)
    dtype = options.get("dtype") or torch.get_default_dtype()
    places = torch.arange(steps, device=options.get("device"), dtype=torch.float64)
    last = places[-1:]
    step = (end - start) / last
    numbers = torch.where(places < steps // 2, start + step * places, end - step * (last - places))
    return torch.where(places == 0, start, numbers).to(dtype)


def _affine_grid(theta: torch.Tensor, size: Sequence[Any], align_corners: bool | None = None) -> torch.Tensor:
    """The products of each matrix with the places of a picture's elements, from -1 to 1."""
    if not _varies(size):
        return F.affine_grid(theta, list(size), align_corners)
    lines = [_linspace(-1, 1, count, dtype=theta.dtype, device=theta.device) for count in size[2:]]
    if not align_corners:
        lines = [line * ((count - 1) / count) for line, count in zip(lines, size[2:], strict=True)]
    places = torch.meshgrid(*lines, indexing="ij")
    rows = torch.stack([*reversed(places), torch.ones_like(places[0])], -1).reshape(1, math.prod(size[2:]), -1)
    return (rows @ theta.mT).reshape(size[0], *size[2:], theta.shape[1])


#: Functions, as a module calls them, and what is called instead.
VARYING: Mapping[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.max_pool1d, F.max_pool1d), _max_pool1d),
    torch.linspace: _linspace,
    F.affine_grid: _affine_grid,
}
