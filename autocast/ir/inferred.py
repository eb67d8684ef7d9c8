"""Types as operators give them, where a module's author wrote down less."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.ir.views import all_bindings, relax_functions, with_functions


def lacks_dtype(type: Any) -> bool:
    """Whether the dtype of a tensor is left out of `type`."""
    if isinstance(type, relax.TensorType):
        return type.dtype is None
    return isinstance(type, tvm.ir.TupleType) and any(lacks_dtype(field) for field in type.fields)


def hides_dtype(type: Any) -> bool:
    """Whether the dtype of a tensor is left out of `type`, or whether there are tensors at all."""
    if isinstance(type, tvm.ir.TupleType):
        return any(map(hides_dtype, type.fields))
    return isinstance(type, relax.AnyType) or lacks_dtype(type)


def _is_vague(value: relax.Expr, type: Any) -> bool:
    """Whether `type`, that of `value`, leaves out a dtype, or the sizes of a tensor that an operator may know."""
    knows = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and not value.ty_args
    unsaid = isinstance(type, relax.AnyType) or (isinstance(type, relax.TensorType) and type.shape is None)
    return lacks_dtype(type) or (knows and unsaid)


def with_inferred_types(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod`, in which variables have the types of what is bound to them, where some left out a dtype or sizes.

    Before::                                        After::

        y: R.Tensor = R.matmul(x, w)                    y: R.Tensor((4, 8), "float32") = R.matmul(x, w)
    """
    functions = {
        var: _Inference().visit_expr(function)
        for var, function in relax_functions(mod)
        if any(_is_vague(binding.value, binding.var.ty) for binding in all_bindings(function.body))
    }
    return with_functions(mod, functions)


@mutator
class _Inference(PyExprMutator):
    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var, value = binding.var, self.visit_expr(binding.value)
        is_output = self.builder_.current_block_is_dataflow() and not isinstance(var, relax.DataflowVar)
        emit = self.builder_.emit_output if is_output else self.builder_.emit
        self.set_var_remap(var, emit(value, var.name))

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        new = super().visit_call_(call)
        return relax.Call(new.op, new.args, new.attrs, new.ty_args) if _is_vague(new, new.ty) else new
