"""Functions that were set apart for a library, or for a later pass, to compile as one kernel."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax

from autocast.ir.views import all_bindings, is_op, main_of

#: What they are marked with.
GROUPED = ("Primitive", "Composite", "Codegen")


def is_grouped(function: relax.Function) -> bool:
    """Whether somebody else was to compile a function."""
    return any(name in (function.attrs or {}) for name in GROUPED)


def is_tir_group(function: relax.Function) -> bool:
    """Whether `FuseTIR` makes one PrimFunc of a function: it is marked for that, and calls PrimFuncs alone."""
    if "Primitive" not in (function.attrs or {}) or "Composite" in function.attrs:
        return False
    values = [binding.value for binding in all_bindings(function.body)]
    others = (relax.Tuple, relax.TupleGetItem, relax.Var)
    return any(is_op(value, "relax.call_tir") for value in values) and all(
        is_op(value, "relax.call_tir") or isinstance(value, others) for value in values
    )


def is_inlined_group(function: relax.Function) -> bool:
    """Whether somebody else was to compile a function, and it is compiled like all else."""
    return is_grouped(function) and not is_tir_group(function)


def with_plain_main(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod`, whose `main` is no group: nobody calls it."""
    main = main_of(mod)
    if main is None or not is_grouped(main):
        return mod
    mod = mod.clone()
    mod["main"] = without_attrs(main, GROUPED)
    return mod


def without_attrs(function: relax.Function, names: Sequence[str]) -> relax.Function:
    """`function` without these attributes."""
    for name in names:
        function = function.without_attr(name) if name in (function.attrs or {}) else function
    return function
