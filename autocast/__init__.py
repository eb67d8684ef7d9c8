"""A mixed-precision compiler on TVM Relax: provably the cheapest casts, every decision explained and overridable.

model = autocast.from_torch(module, example_args)
amp_model = autocast.amp.autocast(model)
logits = amp_model(*example_args)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autocast.collecting import without_garbage_collection

if TYPE_CHECKING:
    from autocast import amp, runtime
    from autocast.errors import AutocastError, CastingRuleError
    from autocast.frontend import from_onnx, from_relax, from_torch
    from autocast.model import Model, load
    from autocast.torch_target import to_onnx, to_torch
    from autocast.vm import get_peak_memory, profile_vm_model
    from autocast.vm.compile import compile
    from autocast.wrapping import wrap

__version__ = "0.1.0"

#: Where each name is. It is imported when it is first asked for: whoever only runs a compiled model needs neither TVM's
#: compiler nor torch, which take seconds.
_HOMES = {
    "AutocastError": "autocast.errors",
    "CastingRuleError": "autocast.errors",
    "Model": "autocast.model",
    "compile": "autocast.vm",
    "from_onnx": "autocast.frontend",
    "from_relax": "autocast.frontend",
    "from_torch": "autocast.frontend",
    "get_peak_memory": "autocast.vm",
    "load": "autocast.model",
    "profile_vm_model": "autocast.vm",
    "to_onnx": "autocast.torch_target",
    "to_torch": "autocast.torch_target",
    "wrap": "autocast.wrapping",
}
_PACKAGES = (
    "amp",
    "compat",
    "errors",
    "frontend",
    "generation",
    "model",
    "operators",
    "policy",
    "runtime",
    "testing",
    "torch_target",
    "training",
    "vm",
)

__all__ = [
    "AutocastError",
    "CastingRuleError",
    "Model",
    "amp",
    "compile",
    "from_onnx",
    "from_relax",
    "from_torch",
    "get_peak_memory",
    "load",
    "profile_vm_model",
    "runtime",
    "to_onnx",
    "to_torch",
    "wrap",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for."""
    with without_garbage_collection():  # which take a fifth of the time that imports take
        if name in _PACKAGES:
            return import_module(f"autocast.{name}")
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
