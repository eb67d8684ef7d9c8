"""Converters of resizing: of images, and antialiased as vision models do it to their position embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import fx
from torch._ops import OpOverload
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.converters.functions import wide
from autocast.frontend.converters.helpers import Converter, cast, dims
from autocast.frontend.importing.importer import Importer
from autocast.frontend.nodes import node_place
from autocast.frontend.splitting.constants import as_constant


def _antialiased(importer: Importer, node: fx.Node) -> relax.Expr:
    """`_upsample_bilinear2d_aa(x, size, align_corners, scale of the height, of the width)`."""
    scales = [importer.arg(node, 3 + i, name) for i, name in enumerate(("scales_h", "scales_w"))]
    return _by_products(importer, node, node.args[1], (node.target, importer.arg(node, 2, "align_corners"), scales))


def _antialiased_backward(importer: Importer, node: fx.Node, operator: OpOverload) -> relax.Expr:
    """`_upsample_bilinear2d_aa_backward(grad, size, size of the images, align_corners, scales)`, by turned matrices."""
    scales = [importer.arg(node, 4 + i, name) for i, name in enumerate(("scales_h", "scales_w"))]
    how, before = (operator, importer.arg(node, 3, "align_corners"), scales), node.args[2][2:]
    rows, columns = (matrix.T for matrix in _matrices(before, node.args[1], importer.dtype(node), how))
    return _multiplied(importer, node, rows, columns)


#: An operator of torch's that resizes, whether corners are aligned, and a scale for each axis.
_How: TypeAlias = tuple[OpOverload, bool, list[Any]]


def _by_products(importer: Importer, node: fx.Node, size: list[Any], how: _How) -> relax.Expr:
    """A product with a matrix of weights along each axis, in float32 as torch has it; torch makes the matrices."""
    extents = dims(importer.arg(node, 0, "self"))[2:]
    return _multiplied(importer, node, *_matrices(extents, size, importer.dtype(node), how))


def _matrices(extents: Sequence[Any], size: Sequence[Any], dtype: str, how: _How) -> tuple[torch.Tensor, torch.Tensor]:
    """What images of `extents` are multiplied with, from the left and from the right."""
    operator, align, scales = how
    if not all(isinstance(value, int) for value in (*extents, *size)) or "float" not in dtype:
        raise ImportModelError(
            f"images of {tuple(extents)} to {tuple(size)}, whose ratio may be another than the scale, or of integers; "
            "expected sizes that are known now, recompute_scale_factor=True, or the size itself"
        )

    def weights(axis: int) -> torch.Tensor:
        """What becomes of images that have a single 1 along an axis: (extent, size)."""
        ones = torch.eye(extents[axis], dtype=torch.float64 if dtype == "float64" else torch.float32)
        # Two columns, as torch takes images of one for others, whose channels are last.
        images = torch.stack([ones, ones], -1)[None]
        images, wanted = (images, [size[0], 2]) if axis == 0 else (images.mT.contiguous(), [2, size[1]])
        alone = [scale if i == axis else None for i, scale in enumerate(scales)]
        return operator(images, wanted, align, *alone).select(3 - axis, 0)[0]

    return weights(0).T, weights(1)


def _multiplied(importer: Importer, node: fx.Node, rows: torch.Tensor, columns: torch.Tensor) -> relax.Expr:
    """Images with a matrix on their left and one on their right."""
    x, dtype, place = importer.arg(node, 0, ""), importer.dtype(node), node_place(node)
    importer.block_builder.place = place._replace(region=place.region or "float32")
    result = importer.emit(relax.op.matmul(cast(importer, x, wide(dtype)), as_constant(columns)))
    return cast(importer, importer.emit(relax.op.matmul(as_constant(rows), result)), dtype)


def _is_ratio(scale: float, before: Any, after: Any) -> bool:
    """Whether a scale is that of the sizes: torch computes places by the scale if it is given one."""
    return float(scale).is_integer() or (isinstance(before, int) and before * scale == after)


def _nearest(importer: Importer, x: relax.Expr, size: list[Any], scales: list[float]) -> relax.Expr:
    """`interpolate` to the nearest element by scales that are not those of the sizes."""
    if not all(isinstance(extent, int) for extent in (*dims(x)[2:], *size)):
        raise ImportModelError(
            f"scale_factor {tuple(scales)} from {dims(x)[2:]} to {tuple(size)}, whose ratios may be others; expected "
            "recompute_scale_factor=True, or the size itself"
        )
    for axis, (after, scale) in enumerate(zip(size, scales, strict=True), 2):
        places = np.floor(np.arange(after, dtype="float32") * np.float32(1 / scale)).astype("int64")
        rows = relax.const(np.minimum(places, dims(x)[axis] - 1))
        x = importer.emit(relax.op.take(x, rows, axis=axis, mode="clip"))
    return x


#: What resizes by scales, under the name that TVM has for the method.
_OPERATORS = {"linear": torch.ops.aten.upsample_bilinear2d.default, "cubic": torch.ops.aten.upsample_bicubic2d.default}


def _resize(importer: Importer, node: fx.Node, method: str) -> relax.Expr:
    """`interpolate` with torch's coordinates: asymmetric and rounded down for nearest, a = -0.75 for bicubic."""
    x, size = importer.arg(node, 0, "input"), importer.shape(node)[2:]
    scales = node.args[-1] if node.args[1] is None else None
    align = method != "nearest_neighbor" and bool(importer.arg(node, 2, "align_corners", False))
    if scales is not None and not align and not all(map(_is_ratio, scales, dims(x)[2:], size)):
        if method == "nearest_neighbor":
            return _nearest(importer, x, size, scales)
        return _by_products(importer, node, size, (_OPERATORS[method], align, scales))
    half = "asymmetric" if method == "nearest_neighbor" else "half_pixel"
    resize = partial(
        relax.op.image.resize2d,
        layout="NCHW",
        method=method,
        coordinate_transformation_mode="align_corners" if align else half,
        rounding_method="floor" if method == "nearest_neighbor" else "",
        cubic_alpha=-0.75,
    )
    if importer.dtype(node) == "uint8" and method != "nearest_neighbor":
        place = node_place(node)
        importer.block_builder.place = place._replace(region=place.region or "float32")
        return _of_bytes(importer, _of_bytes(importer, x, [dims(x)[2], size[1]], resize), size, resize)
    return importer.emit(resize(x, relax.ShapeExpr(size)))


def _of_bytes(importer: Importer, x: relax.Expr, size: list[Any], resize: Callable[..., relax.Expr]) -> relax.Expr:
    """Images of bytes, which torch rounds after each axis: to the nearest, halves up, from 0 to 255."""
    resized = importer.emit(resize(cast(importer, x, "float32"), relax.ShapeExpr(size)))
    nearest = importer.emit(relax.op.floor(importer.emit(relax.op.add(resized, relax.const(0.5, "float32")))))
    return cast(importer, importer.emit(relax.op.clip(nearest, 0, 255)), "uint8")


#: Converters by the name of the overload.
RESAMPLING: dict[str, Converter] = {
    "_upsample_bicubic2d_aa.default": _antialiased,
    "_upsample_bilinear2d_aa.default": _antialiased,
    **{
        f"_upsample_{name}2d_aa_backward.default": partial(_antialiased_backward, operator=operator)
        for name, operator in (
            ("bicubic", torch.ops.aten._upsample_bicubic2d_aa.default),
            ("bilinear", torch.ops.aten._upsample_bilinear2d_aa.default),
        )
    },
    "upsample_bicubic2d.vec": partial(_resize, method="cubic"),
    "upsample_bilinear2d.vec": partial(_resize, method="linear"),
    "upsample_nearest2d.vec": partial(_resize, method="nearest_neighbor"),
}
