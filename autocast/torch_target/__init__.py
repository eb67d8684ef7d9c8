"""A second target: a model as a torch module, which runs wherever torch runs, and as an ONNX file."""

from autocast.torch_target.convert import multiplied_slowly, to_torch
from autocast.torch_target.onnx import to_onnx

__all__ = ["multiplied_slowly", "to_onnx", "to_torch"]
