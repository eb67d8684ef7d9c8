"""`paddle.nn`, of which losses are here: layers are those of a torch module."""

from __future__ import annotations

from autocast.compat.names import named
from autocast.compat.paddle.nn import functional
from autocast.compat.paddle.nn.clip import ClipGradByGlobalNorm

__all__ = ["ClipGradByGlobalNorm", "functional"]

__getattr__ = named(__name__, __all__, "layers are those of a torch module: static.nn.torch_module(module, *inputs)")
