"""RAF's `raf.model`."""

from __future__ import annotations

from autocast.compat.names import named
from autocast.compat.raf.model import model

__all__ = ["model"]

_MODULES = "layers are torch modules; raf.frontend.from_pytorch(module, shapes) imports one"


_NAMES = ("Model", "Conv2d", "BatchNorm", "Linear", "Sequential", "LayerNorm", "trace")

__getattr__ = named(__name__, __all__, instead=dict.fromkeys(_NAMES, _MODULES))
