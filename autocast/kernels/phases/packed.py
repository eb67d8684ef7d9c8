"""What packed functions return is looked at when they have returned it: kernels take types at their word."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import all_bindings, is_op, relax_functions
from autocast.ir.rewriting import BindingRewriter, rewrite_functions


def match_packed(mod: tvm.IRModule) -> tvm.IRModule:
    """Let each value that a packed function returns be matched with the type that the call says.

    Before::                                                After::

        y = R.call_pure_packed("f", x, ty_args=T)               gv = R.call_pure_packed("f", x, ty_args=R.Any)
                                                                y = R.match_cast(gv, T)

    A kernel would read float64 as twice as many float32. What `call_dps_packed` writes is allocated here.
    """
    values = [binding.value for _, function in relax_functions(mod) for binding in all_bindings(function.body)]
    return rewrite_functions(mod, _Matched) if any(map(_promises, values)) else mod


def _promises(value: relax.Expr) -> bool:
    """Whether a call says by itself what type its result has, a tensor's or that of a tuple."""
    if not isinstance(value, relax.Call) or not isinstance(value.ty, relax.TensorType | tvm.ir.TupleType):
        return False
    is_packed = is_op(value, "relax.call_pure_packed", "relax.call_py_func") or isinstance(value.op, relax.ExternFunc)
    return is_packed and not (isinstance(value.ty, tvm.ir.TupleType) and not value.ty.fields)


@mutator
class _Matched(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not _promises(call):
            return None
        arguments = [self.new(argument) for argument in call.args]
        found = self.emit(relax.Call(call.op, arguments, call.attrs, [relax.AnyType()], call.span))
        return self.builder_.match_cast(found, call.ty, binding.var.name)
