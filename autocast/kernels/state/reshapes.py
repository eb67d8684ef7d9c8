"""Views instead of kernels that copy a tensor, in order: those that TVM recognizes, and reshapes to run-time sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.ir import dims, is_op, is_tensor, relax_functions, same_shape, shape_of
from autocast.ir.rewriting import BindingRewriter, rewrite_functions
from autocast.kernels.extents import i64

#: Marks PrimFuncs that copy their one tensor, in order.
RESHAPE = "autocast.reshape"

#: Operators that copy their one tensor, in order.
_RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")

#: TVM's analysis fails for tensors of more elements.
_MOST = 2**31 - 1


def is_reshape(function: tirx.PrimFunc) -> bool:
    """Whether a PrimFunc copies its first argument to its last, all of it and in order.

    TVM's analysis takes the first rows of a tensor for the tensor, asserts where it cannot divide an extent by
    another, such as `(13 - n) * 13` by `13 - n`, and counts elements in 32 bits.
    """
    if RESHAPE in (function.attrs or {}):
        return True
    buffers = [param for param in function.params if isinstance(param.ty, tirx.buffer.BufferType)]
    if not buffers or not same_shape(*([math.prod(end.shape, start=i64(1))] for end in (buffers[0], buffers[-1]))):
        return False
    if _are_many(buffers[0].shape):
        return False
    try:
        return relax.analysis.has_reshape_pattern(function)
    except tvm.error.InternalError:
        return False


def _are_many(sizes: Sequence[Any]) -> bool:
    """Whether a tensor has more elements than TVM's analysis can count."""
    return math.prod(int(size) for size in sizes if isinstance(size, int | tirx.IntImm)) > _MOST


def is_reshaping(mod: tvm.IRModule, value: relax.Expr) -> bool:
    """Whether `value` calls a PrimFunc that copies its one tensor, in order."""
    if not is_op(value, "relax.call_tir"):
        return False
    tensors = [field for field in value.args[1].fields if is_tensor(field)]
    return len(tensors) == 1 and is_tensor(value) and is_reshape(mod[value.args[0]])


@mutator
class _Marks(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not is_op(call, *_RESHAPES) or shape_of(call.args[0]) is None or shape_of(call) is None:
            return None
        sizes = dims(call)
        varies = is_op(call, "relax.reshape") and not all(isinstance(size, int) for size in sizes)
        if not varies and not _are_many(sizes):
            return None
        return self.builder_.call_te(topi.reshape, self.new(call.args[0]), list(sizes), primfunc_attrs={RESHAPE: True})


def mark_reshapes(mod: tvm.IRModule) -> tvm.IRModule:
    """Make PrimFuncs of reshapes to run-time sizes, marked as what they are.

    Before::                                          After::

        b = R.reshape(a, R.shape([n, 4, c]))              b = R.call_tir(reshape, (a,))  # autocast.reshape
    """
    return rewrite_functions(mod, _Marks)


@mutator
class _Views(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not is_reshaping(self.builder_.get(), call):
            return call
        return relax.op.reshape(self.visit_expr(call.args[1].fields[0]), call.ty.shape)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if isinstance(binding.var, relax.DataflowVar):
            super().visit_var_binding_(binding)
        else:
            self.builder_.emit_normalized(binding)


@tvm.transform.module_pass(opt_level=0, name="ViewReshapes")
class ViewReshapes:
    """Let the results of PrimFuncs that copy a tensor be views, inside dataflow blocks.

    Before::                                          After::

        b = R.call_tir(reshape, (a,))                     b = R.reshape(a, R.shape([n, 4, c]))
    """

    def transform_module(self, mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """The module with its views."""
        views = _Views(mod)
        for var, function in relax_functions(mod):
            views.builder_.update_func(var, views.visit_expr(function))
        return views.builder_.get()
