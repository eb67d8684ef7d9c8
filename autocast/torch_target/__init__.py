"""A second target: a model as a torch module, which runs wherever torch runs."""

from autocast.torch_target.convert import to_torch

__all__ = ["to_torch"]
