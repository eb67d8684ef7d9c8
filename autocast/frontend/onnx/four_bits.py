"""Integers of 4 bits, packed in pairs, as integers of 8: what reads them (DequantizeLinear, Cast) computes the same."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from autocast.frontend.onnx.loops import graphs_of

_WIDER = {TensorProto.INT4: ("int8", TensorProto.INT8), TensorProto.UINT4: ("uint8", TensorProto.UINT8)}


def widen_four_bits(model: onnx.ModelProto) -> None:
    """Widen the constants of a model that have 4 bits, and what it says of their dtypes."""
    for graph in graphs_of(model.graph):
        constants = [attribute.t for node in graph.node for attribute in node.attribute if attribute.name == "value"]
        for tensor in (*graph.initializer, *constants):
            if tensor.data_type in _WIDER:
                numbers = np.asarray(numpy_helper.to_array(tensor)).astype(_WIDER[tensor.data_type][0])
                tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
        initialized = {tensor.name for tensor in graph.initializer}
        for value in (*graph.input, *graph.value_info):
            if value.name in initialized and value.type.tensor_type.elem_type in _WIDER:
                value.type.tensor_type.elem_type = _WIDER[value.type.tensor_type.elem_type][1]
