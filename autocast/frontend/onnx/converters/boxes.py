"""Boxes that detectors find."""

from __future__ import annotations

import numpy as np
from tvm import relax

from autocast.frontend.onnx.converters.node import Converter, Node, dtype, sized
from autocast.operators import own

op = relax.op


def _non_max_suppression(node: Node) -> relax.Expr:
    """Rows of (image, class, box), as many as there are: those of a class together, in the order of their scores."""
    boxes, scores = node.cast(node[0], "float32"), node.cast(node[1], "float32")
    most, overlap, least = (
        relax.const(np.array([default], dtype)) if node.get(at) is None else op.reshape(node.cast(node[at], dtype), [1])
        for at, dtype, default in ((2, "int64", 0), (3, "float32", 0.0), (4, "float32", -np.inf))
    )
    centred = int(node.attributes.get("center_point_box", 0))
    order = node.emit(own.suppress(boxes, scores, *map(node.emit, (most, overlap, least)), centred=centred))
    chosen = node.emit(op.nonzero(node.emit(op.greater_equal(order, relax.const(0, "int64")))))
    chosen = node.builder.match_cast(chosen, sized(chosen, node.results[0], {0: 3}))
    places = node.emit(op.permute_dims(chosen))
    numbers = node.emit(op.gather_nd(order, places))
    groups = node.emit(op.strided_slice(places, axes=[1], begin=[0], end=[2]))
    return node.emit(op.concat([groups, node.emit(op.expand_dims(numbers, 1))], axis=1))


def _roi_align(node: Node) -> relax.Expr:
    """Regions begin half a pixel of the features before what they say, or, in the older mode, where they say."""
    asked = node.attributes
    scale = float(asked.get("spatial_scale", 1.0))
    default = "output_half_pixel" if node.opset < 16 else "half_pixel"
    coordinates = str(asked.get("coordinate_transformation_mode", default))
    known = ("half_pixel", "output_half_pixel")
    node.refuse(f"coordinate_transformation_mode={coordinates!r}", coordinates not in known, f"expected one of {known}")
    features, regions, images = (node[at] for at in range(3))
    aligned = coordinates == "half_pixel"
    if aligned:
        regions = node.emit(op.subtract(regions, relax.const(0.5 / scale, dtype(regions))))
    images = node.emit(op.expand_dims(node.cast(images, dtype(regions)), 1))
    return op.vision.roi_align(
        features,
        node.emit(op.concat([images, regions], axis=1)),
        (int(asked.get("output_height", 1)), int(asked.get("output_width", 1))),
        scale,
        int(asked.get("sampling_ratio", 0)),
        aligned,
    )


CONVERTERS: dict[str, Converter] = {"NonMaxSuppression": _non_max_suppression, "RoiAlign": _roi_align}
