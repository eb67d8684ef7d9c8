"""Padding with zeros that a convolution does itself."""

from __future__ import annotations

from typing import Any

from tvm import relax

from autocast.ir import is_op


def pad(rewriter: Any, call: relax.Call, data: relax.Expr) -> relax.Expr | None:
    """The data, where nothing is put around it."""
    return None if any(call.attrs.pad_width) else data


def padded_convolution(rewriter: Any, call: relax.Call, data: relax.Expr, weight: relax.Expr) -> relax.Expr | None:
    """A convolution of what `data` is padded with zeros from, with more padding of its own.

    Before::                                                     After::

        p = R.nn.pad(x, (0, 0, 0, 0, 0, 1, 0, 1))                 y = R.nn.conv2d(x, w, padding=(0, 0, 1, 1))
        y = R.nn.conv2d(p, w, padding=(0, 0, 0, 0))
    """
    source, attributes = rewriter.producer(data), call.attrs
    layout = str(attributes.data_layout)
    axes = [axis for axis, letter in enumerate(layout) if letter not in "NC"]
    if not is_op(source, "relax.nn.pad") or not _is_of_zeros(source, axes):
        return None
    widths = [int(width) for width in source.attrs.pad_width]
    around = [widths[2 * axis + end] for end in (0, 1) for axis in axes]
    padding = [int(own) + more for own, more in zip(attributes.padding, around, strict=True)]
    return getattr(relax.op.nn, call.op.name.rpartition(".")[2])(
        source.args[0],
        weight,
        list(attributes.strides),
        padding,
        list(attributes.dilation),
        attributes.groups,
        layout,
        attributes.kernel_layout,
        attributes.out_layout,
        attributes.out_dtype or None,
    )


def _is_of_zeros(call: relax.Call, axes: list[int]) -> bool:
    """Whether a padding puts zeros around, along no other axes, and cuts nothing."""
    widths = [int(width) for width in call.attrs.pad_width]
    others = [width for place, width in enumerate(widths) if place // 2 not in axes]
    return str(call.attrs.pad_mode) == "constant" and call.attrs.pad_value == 0 and min(widths) >= 0 and not any(others)
