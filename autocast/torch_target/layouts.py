"""Layouts of images and weights: torch has batch and channels first."""

from __future__ import annotations

from autocast.errors import UnsupportedError
from autocast.torch_target.asked import Value


def spatial(layout: str) -> str:
    """The letters of a layout that are neither batch nor channels, in torch's order."""
    return "".join(letter for letter in "DHW" if letter in layout)


def to_layout(x: Value, layout: str, wanted: str) -> Value:
    """A tensor in another layout."""
    if not wanted or layout == wanted:
        return x
    if sorted(layout) != sorted(wanted):
        raise UnsupportedError(
            f"to_torch: the layout {layout} is not one of torch's, expected one such as {wanted}, in any order. "
            "Transform the data, by R.layout_transform, to one without blocks"
        )
    return x.permute([layout.index(letter) for letter in wanted])


def channels_first(x: Value, layout: str) -> Value:
    """A tensor in torch's layout."""
    return to_layout(x, layout, f"NC{spatial(layout)}")
