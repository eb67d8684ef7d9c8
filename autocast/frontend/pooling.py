"""Converters of pooling: of one image, or volume, or of a batch of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.helpers import Converter, dims
from autocast.frontend.importer import Importer


def average_pool(
    x: relax.Expr,
    kernel: Sequence[int],
    stride: Sequence[int] | None,
    padding: Sequence[int] | None,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> relax.Call:
    """`avg_pool2d` of (batch, channels, height, width), or `avg_pool3d` with a depth, as torch says it."""
    if divisor_override is not None:
        raise ImportModelError("divisor_override")
    pool, space = (relax.op.nn.avg_pool2d, 2) if len(dims(x)) == 4 else (relax.op.nn.avg_pool3d, 3)
    sizes = partial(_along_each, space)
    return pool(
        x,
        pool_size=sizes(kernel),
        strides=sizes(stride or kernel),
        padding=sizes(padding or [0]),
        ceil_mode=bool(ceil_mode),
        count_include_pad=bool(count_include_pad),
    )


def max_pool(
    x: relax.Expr,
    kernel: Sequence[int],
    stride: Sequence[int] | None,
    padding: Sequence[int] | None,
    dilation: Sequence[int] | None,
    ceil_mode: bool,
) -> relax.Call:
    """`max_pool2d` of (batch, channels, height, width), or `max_pool3d` with a depth, as torch says it."""
    pool, space = (relax.op.nn.max_pool2d, 2) if len(dims(x)) == 4 else (relax.op.nn.max_pool3d, 3)
    sizes = partial(_along_each, space)
    return pool(
        x, sizes(kernel), sizes(stride or kernel), sizes(padding or [0]), sizes(dilation or [1]), bool(ceil_mode)
    )


def _along_each(space: int, values: Sequence[int]) -> list[int]:
    """A number for each axis; torch takes one for all."""
    return [int(value) for value in (values if len(values) == space else list(values) * space)]


def _pooled(importer: Importer, node: fx.Node, space: int, pool: Callable[[relax.Expr], relax.Expr]) -> relax.Expr:
    """What `pool` makes of the data, which may have no batch."""
    x = importer.arg(node, 0, "self")
    if len(dims(x)) == space + 2:
        return importer.emit(pool(x))
    batch = importer.emit(relax.op.expand_dims(x, 0))
    return importer.emit(relax.op.squeeze(importer.emit(pool(batch)), [0]))


def _average_pool(importer: Importer, node: fx.Node, space: int) -> relax.Expr:
    kernel, stride, padding = (importer.arg(node, i, "") for i in (1, 2, 3))
    options = importer.arg(node, 4, "ceil_mode", False), importer.arg(node, 5, "count_include_pad", True)
    divisor = importer.arg(node, 6, "divisor_override")
    return _pooled(importer, node, space, lambda x: average_pool(x, kernel, stride, padding, *options, divisor))


def _max_pool(importer: Importer, node: fx.Node, space: int) -> list[relax.Expr]:
    """The values; a call whose indices are read, which Relax does not give, is left to torch."""
    kernel, stride, padding, dilation = (importer.arg(node, i, "") for i in (1, 2, 3, 4))
    ceil_mode = importer.arg(node, 5, "ceil_mode", False)
    return [_pooled(importer, node, space, lambda x: max_pool(x, kernel, stride, padding, dilation, ceil_mode))]


def _adaptive_average_pool(importer: Importer, node: fx.Node, space: int) -> relax.Expr:
    pool = getattr(relax.op.nn, f"adaptive_avg_pool{space}d")
    return _pooled(importer, node, space, lambda x: pool(x, importer.shape(node)[-space:]))


def _adaptive_max_pool(importer: Importer, node: fx.Node, space: int) -> list[relax.Expr]:
    """The values: windows that differ in size repeat their last element, which moves no maximum."""
    extents, sizes = dims(importer.arg(node, 0, "self"))[-space:], _along_each(space, node.args[1])
    if not all(isinstance(extent, int) for extent in extents) or 0 in (*extents, *sizes):
        raise ImportModelError(f"windows that divide {extents} in {sizes}; expected sizes that are known now, above 0")

    def pool(x: relax.Expr) -> relax.Expr:
        kernel = []
        for axis, (extent, size) in enumerate(zip(extents, sizes, strict=True), 2):
            begin = np.arange(size) * extent // size
            end = -(-(np.arange(size) + 1) * extent // size)
            kernel.append(int((end - begin).max()))
            places = np.minimum(begin[:, None] + np.arange(kernel[-1]), end[:, None] - 1).reshape(-1)
            if len(places) != extent:
                x = importer.emit(relax.op.take(x, relax.const(places), axis=axis, mode="clip"))
        return max_pool(x, kernel, None, None, None, False)

    return [_pooled(importer, node, space, pool)]


#: Converters by the name of the overload.
POOLING: dict[str, Converter] = {
    "adaptive_avg_pool1d.default": partial(_adaptive_average_pool, space=1),
    "adaptive_avg_pool2d.default": partial(_adaptive_average_pool, space=2),
    "adaptive_avg_pool3d.default": partial(_adaptive_average_pool, space=3),
    "adaptive_max_pool2d.default": partial(_adaptive_max_pool, space=2),
    "adaptive_max_pool3d.default": partial(_adaptive_max_pool, space=3),
    "avg_pool2d.default": partial(_average_pool, space=2),
    "avg_pool3d.default": partial(_average_pool, space=3),
    "max_pool2d_with_indices.default": partial(_max_pool, space=2),
    "max_pool3d_with_indices.default": partial(_max_pool, space=3),
}
