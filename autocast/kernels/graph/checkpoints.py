"""Take away the marks of recomputation."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import is_op
from autocast.kernels.graph.rewriting import BindingRewriter, rewrite_functions


@mutator
class _Remove(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        marked = is_op(binding.value, "relax.grad.start_checkpoint", "relax.grad.end_checkpoint")
        return self.new(binding.value.args[0]) if marked else None


def remove_checkpoints(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace `start_checkpoint(x)` and `end_checkpoint(x)` by x.

    Nothing may look for equal calls afterwards: it would find what is recomputed equal to what was computed.
    """
    return rewrite_functions(mod, _Remove)
