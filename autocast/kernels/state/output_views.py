"""Let outputs be views of what kernels wrote."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.ir import is_op, relax_functions
from autocast.kernels.state.reshapes import is_reshaping


@mutator
class _OutputViews(PyExprMutator):
    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        inside = not isinstance(binding.var, relax.DataflowVar) and self.builder_.current_block_is_dataflow()
        if not inside or not self.reshapes(binding.value) or not self.is_computed(binding.value):
            super().visit_var_binding_(binding)
            return
        view = self.builder_.emit(self.visit_expr(binding.value))
        self.set_var_remap(binding.var, self.builder_.emit_output(view, binding.var.name))

    def reshapes(self, value: relax.Expr) -> bool:
        """Whether `value` copies a tensor, in order."""
        return is_reshaping(self.builder_.get(), value)

    def is_computed(self, reshape: relax.Call) -> bool:
        """Whether a kernel writes what is reshaped: an output that is a view of an argument would let it be changed."""
        source = reshape.args[1].fields[0]
        value = self.lookup_binding(source) if isinstance(source, relax.DataflowVar) else None
        return is_op(value, "relax.call_tir") and (not self.reshapes(value) or self.is_computed(value))


@tvm.transform.module_pass(opt_level=0, name="ViewOutputs")
class ViewOutputs:
    """Bind reshapes that are outputs inside their dataflow blocks: there they become views (`ViewReshapes`).

    Before::                                  After::

        lv = R.call_tir(product, (x, w))          lv = R.call_tir(product, (x, w))
        gv = R.call_tir(reshape, (lv,))           lv1 = R.call_tir(reshape, (lv,))
        R.output(gv)                              gv = lv1
                                                  R.output(gv)
    """

    def transform_module(self, mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """The module with its outputs as views."""
        views = _OutputViews(mod)
        for var, function in relax_functions(mod):
            views.builder_.update_func(var, views.visit_expr(function))
        return views.builder_.get()
