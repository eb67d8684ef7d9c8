"""Take away the marks of differentiation and recomputation."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import is_op
from autocast.ir.rewriting import BindingRewriter, rewrite_functions

_MARKS = ("relax.grad.start_checkpoint", "relax.grad.end_checkpoint", "relax.grad.no_grad")


@mutator
class _Remove(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        return self.new(binding.value.args[0]) if is_op(binding.value, *_MARKS) else None


def remove_checkpoints(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace `start_checkpoint(x)`, `end_checkpoint(x)` and `no_grad(x)` by x.

    Nothing may look for equal calls afterwards: it would find what is recomputed equal to what was computed.
    """
    return rewrite_functions(mod, _Remove)
