"""A mixed-precision compiler on TVM Relax: provably the cheapest casts, every decision explained and overridable.

model = autocast.from_torch(module, example_args)
amp_model = autocast.amp.autocast(model)
logits = amp_model(*example_args)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autocast import amp
from autocast.errors import AutocastError, CastingRuleError
from autocast.frontend import from_relax
from autocast.model import Model
from autocast.vm import compile, get_peak_memory, profile_vm_model

if TYPE_CHECKING:
    from autocast.frontend import from_torch

__version__ = "0.1.0"

__all__ = [
    "AutocastError",
    "CastingRuleError",
    "Model",
    "amp",
    "compile",
    "from_relax",
    "from_torch",
    "get_peak_memory",
    "profile_vm_model",
]


def __getattr__(name: str) -> Any:
    """Import torch when `from_torch` is first used: everything else works without it."""
    if name == "from_torch":
        from autocast.frontend import from_torch

        return from_torch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
