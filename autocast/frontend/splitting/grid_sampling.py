"""`grid_sample` of images and volumes, and its gradient: sums over the few elements around each place.

torch's own table has images alone, and computes their places once for each channel. A gradient is 0 where padding moves
a place, at the border too, as in torch's kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten

#: torch's numbers of modes and of paddings; bilinear and zeros are 0.
_NEAREST, _BICUBIC = 1, 2
_BORDER, _REFLECTION = 1, 2

#: From so many channels on an element is looked up as a row of them; of fewer, channels are looked up one by one.
_ROWS = 8


class _How(NamedTuple):
    """What torch is told of sampling, by its numbers."""

    mode: int
    padding: int
    align: bool
    volume: bool


class _Tap(NamedTuple):
    """An element that is read along an axis: its number, whether it is in the image, its weight, and by how much that
    grows with the grid's number."""

    at: Tensor
    inside: Tensor
    weight: Tensor | None = None
    slope: Tensor | None = None


def _sampled(x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Tensor:
    """`grid_sampler_2d` and `grid_sampler_3d`: (batch, channels, ...) at (batch, ..., axes) numbers from -1 to 1."""
    total: Any = 0
    for taps in _around(x, grid, _How(mode, padding, align, x.dim() == 5)):
        weight, inside = _weight(taps), _inside(taps)
        values = torch.where(_beside(x, inside), _looked_up(x, _index(x, taps)), 0.0)
        total = total + (values if weight is None else values * _beside(x, weight))
    return _placed(x, total, grid).to(x.dtype)


def _backward(
    adjoint: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, align: bool, mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The adjoints of the image and of the grid, those that `mask` asks for."""
    axes, wide = grid.shape[-1], _wide(grid)
    adjoint = adjoint.flatten(2).to(wide.dtype)
    adjoint = _turned(adjoint) if _by_rows(x) else adjoint
    indices, shares = [], []
    of_grid = [torch.zeros(adjoint.shape[0], math.prod(grid.shape[1:-1]), dtype=wide.dtype) for _ in range(axes)]
    for taps in _around(x, grid, _How(mode, padding, align, x.dim() == 5)):
        weight, inside, index = _weight(taps), _inside(taps), _index(x, taps)
        if mask[0]:
            share = adjoint if weight is None else adjoint * _beside(x, weight)
            indices.append(index)
            shares.append(torch.where(_beside(x, inside), share, 0.0))
        if mask[1] and weight is not None:
            alike = (adjoint * _looked_up(x, index)).sum(-1 if _by_rows(x) else 1)
            for axis, tap in enumerate(taps):
                others = _weight([other for other in taps if other is not tap])
                slope = tap.slope if others is None else tap.slope * others
                of_grid[axes - 1 - axis] = of_grid[axes - 1 - axis] + torch.where(inside, alike * slope, 0.0)
    return (
        _added(x, indices, shares).to(x.dtype) if mask[0] else None,
        torch.stack(of_grid, -1).reshape(grid.shape).to(grid.dtype) if mask[1] else None,
    )


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _around(x: Tensor, grid: Tensor, how: _How) -> Iterator[tuple[_Tap, ...]]:
    """The elements that each place is made of, one from each axis; the grid's last number is of the first axis."""
    numbers = _wide(grid).flatten(1, -2)
    along = [_taps(numbers[..., -1 - axis], size, how) for axis, size in enumerate(x.shape[2:])]
    yield from product(*along)


def _taps(number: Tensor, size: Any, how: _How) -> list[_Tap]:
    """Those along an axis of so many elements."""
    half = (size - 1) / 2 if how.align else size / 2
    place = (number + 1) / 2 * (size - 1) if how.align else ((number + 1) * size - 1) / 2
    if how.mode == _BICUBIC:
        first = place.floor()
        after = place - first
        taps = []
        for offset, (weight, slope) in enumerate(_cubic(after), -1):
            at, _ = _padded(first + offset, size, how)
            taps.append(_tap(at, size, weight, slope * half))
        return taps
    place, factor = _padded(place, size, how)
    if how.mode == _NEAREST:
        return [_tap(place.round(), size)]
    first = place.floor()
    slope = factor * half
    return [_tap(first, size, first + 1 - place, -slope), _tap(first + 1, size, place - first, slope)]


def _tap(at: Tensor, size: Any, weight: Tensor | None = None, slope: Tensor | None = None) -> _Tap:
    inside = (at >= 0) & (at < size)
    return _Tap(torch.where(inside, at, 0.0).to(torch.int64), inside, weight, slope)


def _padded(place: Tensor, size: Any, how: _How) -> tuple[Tensor, Tensor]:
    """A place where padding moves it, and the slope of that.

    Far outside nothing is computed with a place: what is no finite number, of which torch's kernel of images makes NaN,
    and that of volumes 0.
    """
    one = torch.ones(place.shape, dtype=place.dtype)
    if how.padding not in (_BORDER, _REFLECTION):
        kept = (place > -2) & (place < size + 1)
        kept = kept if how.volume else kept | ~torch.isfinite(place)
        return torch.where(kept, place, -2.0), one
    slope = one
    if how.padding == _REFLECTION:
        low, span = (0.0, size - 1) if how.align else (-0.5, size)
        away = (place - low).abs()
        turns = (away / span).floor()
        rest = torch.fmod(away, span)
        even = torch.fmod(turns, 2.0) == 0
        slope = torch.where(even == (place >= low), one, -one)
        place = torch.where(even, rest + low, span - rest + low)
    last = size - 1
    within = (place > 0) & (place < last)
    return torch.where(place > 0, torch.where(place < last, place, one * last), 0.0), slope * within


def _cubic(t: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The weights of the four elements around a place that is `t` after the second, and their slopes; a = -0.75."""
    a = -0.75

    def near(d: Tensor) -> tuple[Tensor, Tensor]:
        return ((a + 2) * d - (a + 3)) * d * d + 1, (3 * (a + 2) * d - 2 * (a + 3)) * d

    def far(d: Tensor) -> tuple[Tensor, Tensor]:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a, (3 * a * d - 10 * a) * d + 8 * a

    before, after = [far(t + 1), near(t)], [near(1 - t), far(2 - t)]
    return [*before, *((weight, -slope) for weight, slope in after)]


def _weight(taps: Sequence[_Tap]) -> Tensor | None:
    """The product of weights; None where there are none, which is 1."""
    weights = [tap.weight for tap in taps if tap.weight is not None]
    return reduce(torch.mul, weights) if weights else None


def _inside(taps: Sequence[_Tap]) -> Tensor:
    return reduce(torch.logical_and, (tap.inside for tap in taps))


def _index(x: Tensor, taps: Sequence[_Tap]) -> Tensor:
    """The number of an element, counted through its image."""
    return reduce(lambda index, pair: index * pair[0] + pair[1].at, zip(x.shape[3:], taps[1:], strict=True), taps[0].at)


def _by_rows(x: Tensor) -> bool:
    return not isinstance(x.shape[1], int) or x.shape[1] >= _ROWS


def _turned(x: Tensor) -> Tensor:
    """With the last two axes exchanged."""
    return x.permute(0, 2, 1)


def _beside(x: Tensor, of_places: Tensor) -> Tensor:
    """What is known of each place, (batch, places), for all channels."""
    return of_places.unsqueeze(-1 if _by_rows(x) else 1)


def _in_batch(x: Tensor, index: Tensor) -> Tensor:
    """Numbers of rows, counted through the batch."""
    return index + (torch.arange(x.shape[0]) * math.prod(x.shape[2:])).unsqueeze(-1)


def _looked_up(x: Tensor, index: Tensor) -> Tensor:
    """Elements by their numbers, (batch, places): with their channels last, or of few before the places."""
    flat = x.flatten(2)
    if not _by_rows(x):
        return flat.gather(2, index.unsqueeze(1).expand(-1, x.shape[1], -1))
    return F.embedding(_in_batch(x, index), _turned(flat).flatten(0, 1))


def _added(x: Tensor, indices: Sequence[Tensor], shares: Sequence[Tensor]) -> Tensor:
    """The sum of what each element of `x` is given."""
    if not _by_rows(x):
        index = torch.cat(list(indices), 1).unsqueeze(1).expand(-1, x.shape[1], -1)
        flat = torch.zeros(*x.shape[:2], math.prod(x.shape[2:]), dtype=shares[0].dtype)
        return flat.scatter_add(2, index, torch.cat(list(shares), 2)).reshape(x.shape)
    index = torch.cat([_in_batch(x, index) for index in indices], 1)
    count = x.shape[0] * math.prod(x.shape[2:])
    rows = aten.embedding_dense_backward(torch.cat(list(shares), 1), index, count, -1, False)
    return _turned(rows.reshape(x.shape[0], -1, x.shape[1])).contiguous().reshape(x.shape)


def _placed(x: Tensor, values: Tensor, grid: Tensor) -> Tensor:
    """(batch, channels, ...) of what was looked up at all places."""
    values = _turned(values).contiguous() if _by_rows(x) else values
    return values.reshape(*x.shape[:2], *grid.shape[1:-1])


#: How torch's operators are split.
GRID_SAMPLING: dict[OpOverload, Callable[..., Any]] = {
    aten.grid_sampler_2d.default: _sampled,
    aten.grid_sampler_2d_backward.default: _backward,
    aten.grid_sampler_3d.default: _sampled,
    aten.grid_sampler_3d_backward.default: _backward,
}
