"""Architectures of timm and torchvision, with random weights, and inputs that they take.

Both come by `pip install timm torchvision`, torchvision in the version that belongs to the torch that is installed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.small_models import varied

#: Sides of square images, smaller ones first: some architectures take but one.
_SIZES = (96, 128, 192, 224, 256, 299, 384)


def architectures(*parts: str) -> Iterator[str]:
    """The families of timm and the models of torchvision whose name has one of `parts` in it, if there are any."""
    import timm
    import torchvision

    families = [f"timm.{family}" for family in timm.list_modules()]
    models = [f"torchvision.{name}" for name in torchvision.models.list_models() if "quantized" not in name]
    for name in families + models:
        if not parts or any(part in name for part in parts):
            yield name


def small_models(name: str) -> Iterator[Callable[[], nn.Module]]:
    """How to make the architecture, seeded, in eval mode: of a family of timm the model with the fewest parameters."""
    library, _, which = name.partition(".")
    yield partial(_of_timm if library == "timm" else _of_torchvision, which)


def inputs_of(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Inputs by name, of which the model's forward may take some: pictures, pairs of pictures, a film, a list."""
    torch.manual_seed(1)
    names = [name for name in inspect.signature(model.forward).parameters if name != "self"]
    asked = getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))
    for size in (*_SIZES, asked[-1]):
        yield {names[0]: torch.randn(2, asked[0], size, size)}
    if len(names) > 1:
        yield {name: torch.randn(2, 3, 128, 128) for name in names[:2]}
    for size in (112, 224):
        yield {names[0]: torch.randn(1, 3, 16, size, size)}
    yield {names[0]: [torch.rand(3, 160, 160)]}


def _of_timm(family: str) -> nn.Module:
    import timm

    def size(name: str) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in timm.create_model(name).parameters())

    sizes = {}
    for name in timm.list_models(module=family):
        try:
            sizes[name] = size(name)
        except Exception:  # it makes itself of numbers, which the device meta has not
            continue
    torch.manual_seed(0)
    return varied(timm.create_model(min(sizes, key=sizes.__getitem__, default=timm.list_models(module=family)[0])))


def _of_torchvision(name: str) -> nn.Module:
    import torchvision

    torch.manual_seed(0)
    builder = torchvision.models.get_model_builder(name)
    weights = {"weights": None, "weights_backbone": None}
    return varied(builder(**{key: weights[key] for key in weights if key in inspect.signature(builder).parameters}))
