"""Whether a module that somebody hands over is one that all else can work on."""

from __future__ import annotations

import tvm
from tvm import relax

from autocast.errors import AutocastError
from autocast.ir.views import relax_functions
from autocast.messages import reason


def check_well_formed(entry: str, mod: tvm.IRModule, error: type[AutocastError]) -> None:
    """Raise `error`, which says what TVM finds wrong and in which function, unless `mod` is well formed.

    Parameters
    ----------
    entry
        The function of this project that was given the module: the message begins with it.
    """
    try:
        relax.analysis.well_formed(mod)
    except Exception as found:
        raise error(
            f"{entry}: the module is not well formed: {reason(found)}{_function(mod)}. Expected Relax in A-normal "
            "form, each variable bound once and before its use. mod.script() shows it; "
            "relax.transform.Normalize()(mod) mends nested calls and missing types"
        ) from found


def _function(mod: tvm.IRModule) -> str:
    """Where it is that a module is not well formed, as far as one of its functions is not by itself."""
    for var, function in relax_functions(mod):
        try:
            relax.analysis.well_formed(function)
        except Exception:
            return f", in @{var.name_hint}"
    return ""
