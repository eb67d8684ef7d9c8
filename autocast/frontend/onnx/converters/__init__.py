"""ONNX operators that are translated here; TVM's importer translates the others.

Keys are the operators' names, with the domain before those of other domains than ONNX's: `com.microsoft.FusedMatMul`.
"""

from __future__ import annotations

from autocast.frontend.onnx.converters import (
    attention,
    block_quantized,
    boxes,
    contrib,
    deformed,
    diffusion,
    einsum,
    elementwise,
    experts,
    geometry,
    grouped_attention,
    learned,
    padding,
    quantized,
    resizing,
    rotary,
    shapes,
    signals,
    slices,
    windows,
)
from autocast.frontend.onnx.converters.node import Converter, Node

_FAMILIES = (
    *(attention, block_quantized, boxes, contrib, deformed, diffusion, einsum, elementwise, experts, geometry),
    *(grouped_attention, learned, padding, quantized, resizing, rotary, shapes, signals, slices, windows),
)

CONVERTERS: dict[str, Converter] = {
    name: converter for family in _FAMILIES for name, converter in family.CONVERTERS.items()
}

__all__ = ["CONVERTERS", "Converter", "Node"]
