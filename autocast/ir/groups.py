"""Functions that were set apart for a library, or for a later pass, to compile as one kernel."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax

from autocast.ir.copies import with_new_variables
from autocast.ir.views import all_bindings, is_op, main_of, relax_functions

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
    """`mod`, whose `main` is no group, and is called by no function: its arguments may change.

    Before::                                          After::

        def main(n, x, w):                                def main(n, x, w):
            if R.greater(n, 0):                               return cls.main_1(n, x, w)
                y = cls.main(R.subtract(n, 1), x, w)
            ...                                           def main_1(n, x, w):
                                                              if R.greater(n, 0):
                                                                  y = cls.main_1(R.subtract(n, 1), x, w)
                                                              ...
    """
    main = main_of(mod)
    if main is None:
        return mod
    if is_grouped(main):
        mod = mod.clone()
        main = mod["main"] = without_attrs(main, GROUPED)
    var = mod.get_global_var("main")
    if not any(_calls(function, var) for _, function in relax_functions(mod)):
        return mod
    mod = mod.clone()
    mod[var] = without_attrs(main, ("global_symbol", "num_input"))
    like = with_new_variables(main)
    result = relax.Var("result", like.ret_ty)
    call = relax.BindingBlock([relax.VarBinding(result, relax.Call(var, like.params))])
    caller = relax.Function(like.params, relax.SeqExpr([call], result), like.ret_ty, like.is_pure, like.attrs)
    mod[tvm.ir.GlobalVar("main_caller")] = caller.with_attr("global_symbol", "main")
    return relax.transform.NormalizeGlobalVar()(mod)


def _calls(function: relax.Function, callee: tvm.ir.GlobalVar) -> bool:
    """Whether a function, or one in it, calls or passes `callee`."""
    for binding in all_bindings(function.body):
        value = binding.value
        if isinstance(value, relax.Function) and _calls(value, callee):
            return True
        if isinstance(value, relax.Call) and any(callee.same_as(part) for part in (value.op, *value.args)):
            return True
    return False


def without_attrs(function: relax.Function, names: Sequence[str]) -> relax.Function:
    """`function` without these attributes."""
    for name in names:
        function = function.without_attr(name) if name in (function.attrs or {}) else function
    return function
