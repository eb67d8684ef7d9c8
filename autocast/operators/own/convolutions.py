"""Gradients of convolutions' weights: sums over pixels of products of data and the adjoint `g` of the result."""

from __future__ import annotations

import itertools
import math

from tvm import relax

from autocast.ir.views import dtype_of, shape_of
from autocast.operators.operator import Expansion, Operator, define, like

op = relax.op


def _weight(e: Expansion) -> relax.Expr:
    """One product for each tap: of the adjoint's (features, pixels) and the (pixels, channels) that the tap sees."""
    x, w, g = e.operands
    attributes = e.call.attrs
    features, per_group, *kernel = shape_of(w) or ()
    rank, groups = len(kernel), int(attributes.groups)
    strides, dilation = ([int(n) for n in values] for values in (attributes.strides, attributes.dilation))
    x, g = (e.emit(op.permute_dims(tensor, _channels_first(attributes.data_layout))) for tensor in (x, g))
    padding = [int(width) for width in attributes.padding]
    widths = [width for axis in range(rank) for width in (padding[axis], padding[axis + rank])]
    padded = e.emit(op.nn.pad(x, [0, 0, 0, 0, *widths])) if any(padding) else x
    batch, _, *extents = shape_of(g) or ()
    pixels = math.prod(extents[1:], start=extents[0])
    rows = e.emit(op.reshape(g, relax.ShapeExpr([batch, groups, features // groups, pixels])))
    taps = []
    for tap in itertools.product(*map(range, kernel)):
        begin = [place * step for place, step in zip(tap, dilation, strict=True)]
        end = [b + (n - 1) * step + 1 for b, n, step in zip(begin, extents, strides, strict=True)]
        seen = e.emit(op.strided_slice(padded, list(range(2, rank + 2)), begin, end, strides))
        columns = e.emit(op.reshape(seen, relax.ShapeExpr([batch, groups, per_group, pixels])))
        dtype = None if dtype_of(x) == dtype_of(w) else dtype_of(w)
        taps.append(e.emit(op.sum(op.matmul(rows, op.permute_dims(columns, [0, 1, 3, 2]), out_dtype=dtype), 0)))
    return op.reshape(e.emit(op.stack(taps, axis=-1)), w.ty.shape)


def _channels_first(layout: str) -> list[int]:
    """The permutation to (batch, channels, ...)."""
    return [str(layout).index(axis) for axis in "NC"] + [i for i, axis in enumerate(layout) if axis not in "NC"]


def _gradient(name: str) -> Operator:
    return define(
        f"relax.grad.{name}_weight_backward",
        "x w g",
        result=like(1),
        expand=_weight,
        summary=f"The adjoint of the weights w of {name}, whose values are not read",
        attributes=f"relax.attrs.{name.capitalize().replace('d', 'D')}Attrs",
        multiplies=True,
    )


conv1d_weight_backward = _gradient("conv1d")
conv2d_weight_backward = _gradient("conv2d")
conv3d_weight_backward = _gradient("conv3d")
