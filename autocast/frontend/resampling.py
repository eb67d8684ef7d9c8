"""Converters of antialiased resizing, as vision models do it to their position embeddings."""

from __future__ import annotations

import torch
from torch import fx
from tvm import relax

from autocast.errors import ImportModelError
from autocast.frontend.functions import wide
from autocast.frontend.helpers import Converter, cast, dims
from autocast.frontend.importer import Importer, as_constant
from autocast.frontend.nodes import node_place


def _antialiased(importer: Importer, node: fx.Node) -> relax.Expr:
    """A product with a matrix of weights along each axis, in float32 as torch has it; torch makes the matrices."""
    x, dtype = importer.arg(node, 0, "self"), importer.dtype(node)
    size, align = node.args[1], bool(importer.arg(node, 2, "align_corners"))
    scales = [importer.arg(node, 3 + i, name) for i, name in enumerate(("scales_h", "scales_w"))]
    extents = dims(x)[2:]
    if not all(isinstance(value, int) for value in (*extents, *size)) or "float" not in dtype:
        raise ImportModelError("images of a size that is known only at run time, or of integers")

    def weights(axis: int) -> torch.Tensor:
        """What becomes of images that have a single 1 along an axis: (extent, size)."""
        ones = torch.eye(extents[axis], dtype=torch.float64 if dtype == "float64" else torch.float32)
        # Two columns, as torch takes images of one for others, whose channels are last.
        images = torch.stack([ones, ones], -1)[None]
        images, wanted = (images, [size[0], 2]) if axis == 0 else (images.mT.contiguous(), [2, size[1]])
        alone = [scale if i == axis else None for i, scale in enumerate(scales)]
        return node.target(images, wanted, align, *alone).select(3 - axis, 0)[0]

    place = node_place(node)
    importer.block_builder.place = place._replace(region=place.region or "float32")
    result = cast(importer, x, wide(dtype))
    result = importer.emit(relax.op.matmul(result, as_constant(weights(1))))
    result = importer.emit(relax.op.matmul(as_constant(weights(0).T), result))
    return cast(importer, result, dtype)


#: Converters by the name of the overload.
RESAMPLING: dict[str, Converter] = {
    "_upsample_bicubic2d_aa.default": _antialiased,
    "_upsample_bilinear2d_aa.default": _antialiased,
}
