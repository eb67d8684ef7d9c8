"""A second target: a model as a torch module, which runs wherever torch runs, and as an ONNX file."""

from autocast.torch_target.convert import to_torch
from autocast.torch_target.onnx import to_onnx

__all__ = ["to_onnx", "to_torch"]
