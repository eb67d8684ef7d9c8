"""Bind the calls that a `match_cast` looks at: passes would take the call for the whole binding."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.ir.views import all_bindings, relax_functions


@mutator
class _Binder(PyExprMutator):
    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        value = self.visit_expr(binding.value)
        if isinstance(value, relax.Call):
            value = self.builder_.emit(value)
        self.builder_.emit_normalized(relax.MatchCast(binding.var, value, binding.ty))


def bind_matched_calls(mod: tvm.IRModule) -> tvm.IRModule:
    """Give each call that a `match_cast` looks at a variable of its own.

    Before::                                            After::

        v = R.match_cast(R.unique(x), R.Tensor(("n",)))     gv = R.unique(x)
                                                            v = R.match_cast(gv, R.Tensor(("n",)))
    """
    functions = {
        var: _Binder().visit_expr(function)
        for var, function in relax_functions(mod)
        if any(isinstance(b, relax.MatchCast) and isinstance(b.value, relax.Call) for b in all_bindings(function.body))
    }
    if not functions:
        return mod
    return tvm.IRModule({**mod.functions, **functions}, attrs=mod.attrs, global_infos=mod.global_infos)
