"""Models in: from PyTorch and from Relax."""

from autocast.frontend.relax import from_relax
from autocast.frontend.torch import from_torch

__all__ = ["from_relax", "from_torch"]
