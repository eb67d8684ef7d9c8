"""What other stages of TVM's pipelines left in a module, as the phases here know it."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.ir import all_bindings, is_op, relax_functions, with_functions

_KILLS = ("relax.vm.kill_object", "relax.memory.kill_storage", "relax.memory.kill_tensor")

_WITH_GRADIENT = "relax.call_tir_with_grad"

#: How TVM begins the symbols of what it links into a program; here kernels are linked otherwise, under their names.
_PREFIX = "system_lib_prefix"


def remove_leftovers(mod: tvm.IRModule) -> tvm.IRModule:
    """Take away releases, which are planned anew, gradients of PrimFuncs, which nobody asks for any more, and prefixes.

    Before::                                            After::

        y = R.call_tir_with_grad(f, (x,), ...)              y = R.call_tir(f, (x,), ...)
        R.memory.kill_tensor(x)
    """
    functions = {
        var: _Remover().visit_expr(function)
        for var, function in relax_functions(mod)
        if any(is_op(binding.value, *_KILLS, _WITH_GRADIENT) for binding in all_bindings(function.body))
    }
    mod = with_functions(mod, functions)
    return mod.without_attr(_PREFIX) if _PREFIX in (mod.attrs or {}) else mod


@mutator
class _Remover(PyExprMutator):
    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if not is_op(binding.value, *_KILLS):
            super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        new = super().visit_call_(call)
        if is_op(new, _WITH_GRADIENT):
            return relax.Call(tvm.ir.Op.get("relax.call_tir"), new.args, None, new.ty_args)
        return new
