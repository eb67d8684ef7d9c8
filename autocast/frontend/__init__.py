"""Models in: from PyTorch, from ONNX and from Relax."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autocast.errors import ImportModelError
from autocast.frontend.dtypes import with_dtypes
from autocast.frontend.relax import from_relax

if TYPE_CHECKING:
    from autocast.frontend.onnx import from_onnx
    from autocast.frontend.torch import from_torch

__all__ = ["from_onnx", "from_relax", "from_torch", "with_dtypes"]

#: Where importers are that need another package, what it is, and the extra that installs it.
_HOMES = {
    "from_onnx": ("autocast.frontend.onnx", "onnx", "onnx"),
    "from_torch": ("autocast.frontend.torch", "torch", "torch"),
}


def __getattr__(name: str) -> Any:
    """An importer, imported when it is asked for, so that Relax modules need neither torch nor onnx."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, package, extra = _HOMES[name]
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        raise ImportModelError(
            f"{name}: the package {package} is not installed, expected it beside this one. Try pip install "
            f"'relax-autocast[{extra}]'"
        ) from error
    return getattr(import_module(home), name)
