"""Gradients of convolutions' weights: sums over pixels of products of data and the adjoint `g` of the result."""

from __future__ import annotations

import itertools
import math

from tvm import relax

from autocast.ir.views import dtype_of, shape_of
from autocast.operators.operator import Expansion, Operator, define, like

op = relax.op


#: With more taps than this those of the last axis share a product.
_TAPS = 64


def _weight(e: Expansion) -> relax.Expr:
    """Products of the adjoint's (features, pixels) and of the (pixels, channels) that some taps of the window see.

    All taps see their pixels in one reshaping where windows lie side by side, as a vision transformer's patches do.
    """
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
    dtype = None if dtype_of(x) == dtype_of(w) else dtype_of(w)

    def product(seen: relax.Expr, taps: int) -> relax.Expr:
        """(groups, features of one, channels of one * taps), of (batch, channels, pixels ..., taps ...)."""
        if taps == 1:
            columns = e.emit(op.reshape(seen, relax.ShapeExpr([batch, groups, per_group, pixels])))
            columns = op.permute_dims(columns, [0, 1, 3, 2])
        else:
            columns = op.reshape(seen, relax.ShapeExpr([batch, groups, per_group, pixels, taps]))
            columns = op.permute_dims(columns, [0, 1, 3, 2, 4])
            columns = e.emit(op.reshape(columns, relax.ShapeExpr([batch, groups, pixels, per_group * taps])))
        return e.emit(op.sum(op.matmul(rows, columns, out_dtype=dtype), 0))

    def seen_by(x: relax.Expr, axes: range, tap: tuple[int, ...]) -> relax.Expr:
        begin = [place * dilation[axis] for axis, place in zip(axes, tap, strict=True)]
        end = [b + (extents[axis] - 1) * strides[axis] + 1 for axis, b in zip(axes, begin, strict=True)]
        return op.strided_slice(
            x, [axis + 2 for axis in axes], begin, end, [strides[axis] for axis in axes], assume_inbound=True
        )

    if strides == kernel and all(step == 1 for step in dilation) and math.prod(kernel) > 1:
        ends = [extent * size for extent, size in zip(extents, kernel, strict=True)]
        tiles = op.strided_slice(padded, list(range(2, rank + 2)), [0] * rank, ends)
        split = [size for pair in zip(extents, kernel, strict=True) for size in pair]
        tiles = op.reshape(tiles, relax.ShapeExpr([batch, groups * per_group, *split]))
        order = [0, 1, *range(2, 2 * rank + 2, 2), *range(3, 2 * rank + 2, 2)]
        return op.reshape(product(op.permute_dims(tiles, order), math.prod(kernel)), w.ty.shape)
    shared = kernel[-1] if math.prod(kernel) > _TAPS else 1
    outer = kernel[: rank - 1] if shared > 1 else kernel
    if shared > 1:
        last = range(rank - 1, rank)
        padded = e.emit(op.stack([e.emit(seen_by(padded, last, (place,))) for place in range(shared)], axis=-1))
    taps = [product(seen_by(padded, range(len(outer)), tap), shared) for tap in itertools.product(*map(range, outer))]
    found = e.emit(op.stack(taps, axis=-1))
    if shared > 1:
        found = op.reshape(found, [features, per_group, shared, math.prod(outer)])
        found = op.permute_dims(found, [0, 1, 3, 2])
    return op.reshape(found, w.ty.shape)


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
