"""Backward operators of normalizations: the adjoints of the data, the scale and the offset.

With the normalized data n = (x - mean) / sqrt(variance + epsilon) and h = gamma g, the adjoint of the data is
(h - mean(h) - n mean(h n)) / sqrt(variance + epsilon): what changes mean and variance does not pass. Statistics are
computed again from the data, which is cheaper than to keep them.

Source: Ioffe and Szegedy, "Batch Normalization", 2015, for the formulas; Ba et al., "Layer Normalization", 2016.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from autocast.ir.operators.operator import Expansion, define, like
from autocast.ir.views import shape_of

op = relax.op


def _axes(e: Expansion) -> list[int]:
    rank = len(shape_of(e.operands[0]) or ())
    return sorted(int(axis) % rank for axis in e.call.attrs.axes)


def _along(vector: relax.Expr, x: relax.Expr, axes: Sequence[int]) -> relax.Expr:
    """`vector`, which lies along `axes` of `x`, shaped to broadcast with it."""
    shape = shape_of(x) or ()
    if list(axes) == list(range(len(shape) - len(axes), len(shape))):
        return vector
    return op.reshape(vector, [size if axis in axes else 1 for axis, size in enumerate(shape)])


def _reciprocal_deviation(e: Expansion, x: relax.Expr, axes: Sequence[int]) -> relax.Expr:
    """1 / sqrt(mean(x^2) + epsilon)."""
    return e.emit(op.rsqrt(op.mean(x * x, axes, keepdims=True) + e.number(float(e.call.attrs.epsilon))))


def _centered(e: Expansion, x: relax.Expr, axes: Sequence[int]) -> relax.Expr:
    return e.emit(x - op.mean(x, axes, keepdims=True))


def _others(x: relax.Expr, axes: Sequence[int]) -> list[int]:
    return [axis for axis in range(len(shape_of(x) or ())) if axis not in axes]


def _layer_norm(e: Expansion) -> list[relax.Expr]:
    x, gamma, g = e.operands
    axes = _axes(e)
    centered = _centered(e, x, axes)
    scale = _reciprocal_deviation(e, centered, axes)
    normalized = e.emit(centered * scale)
    h = e.emit(g * _along(gamma, x, axes)) if e.call.attrs.scale else g
    through_mean = op.mean(h, axes, keepdims=True)
    through_variance = normalized * op.mean(h * normalized, axes, keepdims=True)
    rows = _others(x, axes)
    return [scale * (h - through_mean - through_variance), op.sum(g * normalized, rows), op.sum(g, rows)]


def _rms_norm(e: Expansion) -> list[relax.Expr]:
    x, gamma, g = e.operands
    axes = _axes(e)
    scale = _reciprocal_deviation(e, x, axes)
    normalized = e.emit(x * scale)
    h = e.emit(g * _along(gamma, x, axes))
    through_scale = normalized * op.mean(h * normalized, axes, keepdims=True)
    return [scale * (h - through_scale), op.sum(g * normalized, _others(x, axes))]


layer_norm_backward = define(
    "relax.grad.layer_norm_backward",
    "x gamma g",
    result=like(0, 1, 1),
    expand=_layer_norm,
    summary="The adjoints of the data, scale and offset of layer_norm",
    attributes="relax.attrs.LayerNormAttrs",
)
rms_norm_backward = define(
    "relax.grad.rms_norm_backward",
    "x gamma g",
    result=like(0, 1),
    expand=_rms_norm,
    summary="The adjoints of the data and scale of rms_norm",
    attributes="relax.attrs.RMSNormAttrs",
)
