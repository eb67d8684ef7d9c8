"""Models in: from PyTorch and from Relax."""

from typing import TYPE_CHECKING, Any

from autocast.errors import ImportModelError
from autocast.frontend.dtypes import with_dtypes
from autocast.frontend.relax import from_relax

if TYPE_CHECKING:
    from autocast.frontend.torch import from_torch

__all__ = ["from_relax", "from_torch", "with_dtypes"]


def __getattr__(name: str) -> Any:
    """`from_torch`, imported when it is asked for, so that Relax modules need no torch."""
    if name == "from_torch":
        try:
            import torch  # noqa: F401
        except ModuleNotFoundError as error:
            raise ImportModelError(
                "from_torch: torch is not installed, expected torch 2.13, which exports the modules that are imported. "
                "Try pip install 'relax-autocast[torch]'"
            ) from error
        from autocast.frontend.torch import from_torch

        return from_torch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
