"""RAF's `raf.optim`: optimizers that wrap a model with a loss."""

from __future__ import annotations

from autocast.compat.names import named
from autocast.compat.raf.optim import lans, sgd

__all__ = ["lans", "sgd"]


_NAMES = {"with_data_parallel": "models run on one machine", "with_autodiff": "with_sgd and with_lans differentiate"}

__getattr__ = named(__name__, __all__, instead=_NAMES)
