"""`x[i]`, where `i` is a tensor of one number: torch's export would want the number.

Where nothing but slices and plain numbers is beside it, `x[i]` reads a view, which torch exports.
"""

from __future__ import annotations

from typing import Any

import torch

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


def set_item(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """`tensor[index] = value`."""
    places = index if isinstance(index, tuple) else (index,)
    if not _has_number(places):
        tensor[index] = value
        return
    view, indices = _chosen(tensor, places)
    ranks = [place.dim() for place in indices if place is not None]
    rank = view.dim() - len(ranks) + max(ranks)
    value = value.to(view.dtype) if isinstance(value, torch.Tensor) else view.new_full((), value)
    while value.dim() > rank and value.shape[0] == 1:
        value = value[0]
    torch.ops.aten.index_put_(view, indices, value)


def get_item(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """`tensor[index]`."""
    if isinstance(index, tuple) and _has_number(index) and any(_is_whole(place) and place.dim() for place in index):
        return torch.ops.aten.index(*_chosen(tensor, index))
    return tensor[index]


def _has_number(places: tuple[Any, ...]) -> bool:
    """Whether one of the places is a number in a tensor, and all are known to `_chosen`."""
    known = (int, slice, type(None), type(Ellipsis))
    return any(_is_whole(place) and place.dim() == 0 for place in places) and all(
        type(place) in known or _is_whole(place) for place in places
    )


def _is_whole(place: Any) -> bool:
    return isinstance(place, torch.Tensor) and place.dtype in _INTEGERS


def _chosen(tensor: torch.Tensor, places: tuple[Any, ...]) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """What the slices and plain numbers choose, and for each of its axes, up to the last, the tensor of places."""
    view = tensor[tuple(slice(None) if isinstance(place, torch.Tensor) else place for place in places)]
    others = tensor.dim() - sum(place is not None and place is not Ellipsis for place in places)
    indices: list[torch.Tensor | None] = []
    for place in places:
        if place is Ellipsis:
            indices += [None] * others
        elif not isinstance(place, int):
            indices.append(place.long() if isinstance(place, torch.Tensor) else None)
    while indices[-1] is None:
        indices.pop()
    return view, indices
