"""A mixed-precision compiler on TVM Relax: provably the fewest casts, every decision explained and overridable.

model = autocast.from_torch(module, example_args)
amp_model = autocast.amp.autocast(model)
logits = amp_model(*example_args)
"""

from autocast import amp
from autocast.errors import AutocastError, CastingRuleError
from autocast.frontend import from_relax, from_torch
from autocast.model import Model
from autocast.vm import compile, get_peak_memory, profile_vm_model

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
