"""Backward operators of normalizations: the adjoints of the data, the scale and the offset.

With the normalized data n = (x - mean) / sqrt(variance + epsilon) and h = gamma g, the adjoint of the data is
(h - mean(h) - n mean(h n)) / sqrt(variance + epsilon): what changes mean and variance does not pass. Statistics are
computed again from the data, which is cheaper than to keep them.

Source: Ioffe and Szegedy, "Batch Normalization", 2015, for the formulas; Ba et al., "Layer Normalization", 2016.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tvm import relax

from autocast.ir.views import shape_of
from autocast.operators.operator import Expansion, define, like

op = relax.op


def _through(
    e: Expansion, x: relax.Expr, h: relax.Expr, axes: Sequence[int], *, centered: bool = True
) -> tuple[relax.Expr, relax.Expr]:
    """The adjoint of `x`, from that of the normalized data, and the normalized data; `axes` are those of statistics."""
    if centered:
        x = e.emit(x - op.mean(x, axes, keepdims=True))
    epsilon = e.number(float(e.call.attrs.epsilon))
    scale = e.emit(op.rsqrt(op.mean(x * x, axes, keepdims=True) + epsilon))
    normalized = e.emit(x * scale)
    passed = h - op.mean(h, axes, keepdims=True) if centered else h
    return scale * (passed - normalized * op.mean(h * normalized, axes, keepdims=True)), normalized


def _along(vector: relax.Expr, shape: Sequence, axes: Collection[int]) -> relax.Expr:
    """`vector`, which lies along `axes` of tensors of `shape`, with dimensions of 1 to broadcast with them."""
    if sorted(axes) == list(range(len(shape) - len(axes), len(shape))):
        return vector
    return op.reshape(vector, [size if axis in axes else 1 for axis, size in enumerate(shape)])


def _others(shape: Sequence, axes: Collection[int]) -> list[int]:
    return [axis for axis in range(len(shape)) if axis not in axes]


def _rows(e: Expansion, *, centered: bool) -> list[relax.Expr]:
    """layer_norm and rms_norm: scale and offset lie along what is normalized."""
    x, gamma, g = e.operands
    shape = shape_of(x) or ()
    axes = sorted(int(axis) % len(shape) for axis in e.call.attrs.axes)
    h = e.emit(g * _along(gamma, shape, axes)) if getattr(e.call.attrs, "scale", True) else g
    dx, normalized = _through(e, x, h, axes, centered=centered)
    others = _others(shape, axes)
    return [dx, op.sum(g * normalized, others), *([op.sum(g, others)] if centered else [])]


def _groups(e: Expansion) -> list[relax.Expr]:
    """group_norm and instance_norm, where each channel is a group: scale and offset lie along the channels."""
    x, gamma, g = e.operands
    attributes, shape = e.call.attrs, shape_of(x) or ()
    channel = int(attributes.channel_axis) % len(shape)
    channels = shape[channel]
    groups = int(getattr(attributes, "num_groups", 0)) or channels
    split = [*shape[:channel], groups, channels // groups, *shape[channel + 1 :]]
    normalized_axes = (int(axis) % len(shape) for axis in attributes.axes)
    axes = sorted([channel + 1, *(axis + (axis > channel) for axis in normalized_axes)])
    g = e.emit(op.reshape(g, split))
    h = g
    if getattr(attributes, "scale", True):
        h = e.emit(g * op.reshape(gamma, [groups, channels // groups, *[1] * (len(shape) - channel - 1)]))
    dx, normalized = _through(e, e.emit(op.reshape(x, split)), h, axes)
    others = _others(split, (channel, channel + 1))
    sums = [op.reshape(op.sum(term, others), (channels,)) for term in (g * normalized, g)]
    return [op.reshape(dx, shape), *sums]


layer_norm_backward = define(
    "relax.grad.layer_norm_backward",
    "x gamma g",
    result=like(0, 1, 1),
    expand=lambda e: _rows(e, centered=True),
    summary="The adjoints of the data, scale and offset of layer_norm",
    attributes="relax.attrs.LayerNormAttrs",
)
rms_norm_backward = define(
    "relax.grad.rms_norm_backward",
    "x gamma g",
    result=like(0, 1),
    expand=lambda e: _rows(e, centered=False),
    summary="The adjoints of the data and scale of rms_norm",
    attributes="relax.attrs.RMSNormAttrs",
)
group_norm_backward = define(
    "relax.grad.group_norm_backward",
    "x gamma g",
    result=like(0, 1, 1),
    expand=_groups,
    summary="The adjoints of the data, scale and offset of group_norm",
    attributes="relax.attrs.GroupNormAttrs",
)
instance_norm_backward = define(
    "relax.grad.instance_norm_backward",
    "x gamma g",
    result=like(0, 1, 1),
    expand=_groups,
    summary="The adjoints of the data, scale and offset of instance_norm",
    attributes="relax.attrs.InstanceNormAttrs",
)
