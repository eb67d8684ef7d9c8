"""`mxnet.contrib`, where MXNet 1 has `amp`."""

from __future__ import annotations

from autocast.compat.mxnet import amp
from autocast.compat.names import named

__all__ = ["amp"]

__getattr__ = named(__name__, __all__)
