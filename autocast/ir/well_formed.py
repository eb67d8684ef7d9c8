"""Whether a module that somebody hands over is one that all else can work on."""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from autocast.errors import AutocastError
from autocast.ir.agreeing import disagree, never_equal
from autocast.ir.views import relax_functions
from autocast.messages import reason

#: Attributes of functions that say how small or large their symbolic sizes may be.
BOUNDS = ("tir_var_lower_bound", "tir_var_upper_bound")


def check_well_formed(entry: str, mod: tvm.IRModule, error: type[AutocastError], *, types: bool = True) -> None:
    """Raise `error`, which says what is wrong and in which function, unless `mod` is well formed.

    Parameters
    ----------
    entry
        The function of this project that was given the module: the message begins with it.
    types
        Whether those of all variables are checked, too: TVM infers that of every call again.
    """
    try:
        relax.analysis.well_formed(mod, types)
    except Exception as found:
        raise error(
            f"{entry}: the module is not well formed: {reason(found)}{_function(mod)}. Expected Relax in A-normal "
            "form, each variable bound once and before its use. mod.script() shows it; "
            "relax.transform.Normalize()(mod) mends nested calls and missing types"
        ) from found
    for var, function in relax_functions(mod):
        if disagree(function.ret_ty, function.body.ty, never_equal):
            raise error(
                f"{entry}: @{var.name_hint} returns {function.body.ty} and declares {function.ret_ty}, expected one "
                "type. Convert the result, with R.astype or R.reshape, or leave the type out: TVM infers it"
            )
        for name in BOUNDS:
            bounds = (function.attrs or {}).get(name) or {}
            if not all(isinstance(bound, int | tirx.IntImm) for bound in bounds.values()):
                raise error(
                    f"{entry}: @{var.name_hint} has the attribute {name!r} with {bounds}; expected a whole number for "
                    "each name of a size, {'n': 64}"
                )


def _function(mod: tvm.IRModule) -> str:
    """Where it is that a module is not well formed, as far as one of its functions is not by itself."""
    for var, function in relax_functions(mod):
        try:
            relax.analysis.well_formed(function)
        except Exception:
            return f", in @{var.name_hint}"
    return ""
