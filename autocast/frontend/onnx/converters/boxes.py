"""Boxes that detectors find."""

from __future__ import annotations

import numpy as np
from tvm import relax

from autocast.frontend.onnx.converters.node import Converter, Node, sized
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


CONVERTERS: dict[str, Converter] = {"NonMaxSuppression": _non_max_suppression}
