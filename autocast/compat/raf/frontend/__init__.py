"""RAF's `raf.frontend`: torch modules become models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from autocast.compat.names import named
from autocast.compat.raf.handle import FrameworkModel
from autocast.errors import ImportModelError
from autocast.frontend import from_torch
from autocast.messages import check_kind, shown
from autocast.model import Model

__all__ = ["FrameworkModel", "from_pytorch"]


__getattr__ = named(__name__, __all__, instead={"from_mxnet": "models are torch modules: from_pytorch"})


def from_pytorch(
    model: torch.nn.Module,
    shape_dict: Mapping[str, tuple[Sequence[int], str]],
    model_file: str | None = None,
    hash_file: str | None = None,
) -> FrameworkModel:
    """The import of a torch module; its mode is the one that the module is in.

    Parameters
    ----------
    model : torch.nn.Module
        The module, which is not changed.
    shape_dict : mapping
        For each input, in order, its shape and dtype; the names of inputs are those of the module's `forward`.
    model_file, hash_file
        Accepted as RAF accepts them; nothing is traced that would have to be kept.
    """
    check_kind("from_pytorch", model, torch.nn.Module, ImportModelError, "a torch.nn.Module")
    try:
        described = [(tuple(map(int, shape)), getattr(torch, dtype)) for shape, dtype in shape_dict.values()]
    except (AttributeError, TypeError, ValueError):
        raise ImportModelError(
            f"from_pytorch: shape_dict is {shown(shape_dict)}, expected the shape and the dtype of each input by its "
            "name; try {'x': ((1, 3), 'float32')}"
        ) from None
    examples = tuple(torch.zeros(shape, dtype=dtype) for shape, dtype in described)
    is_train = model.training

    def other() -> Model:
        modes = {module: module.training for module in model.modules()}
        model.train(not is_train)
        try:
            return from_torch(model, examples)
        finally:
            for module, training in modes.items():
                module.training = training

    return FrameworkModel(from_torch(model, examples), other, is_train)
