"""Replace operators of our own by the operators of TVM that they are short for."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import dtype_of, op_name
from autocast.ir.operators import OPERATORS, Expansion
from autocast.kernels.convolutions.declined import has_kernel
from autocast.kernels.graph.operators import LOW
from autocast.kernels.graph.rewriting import BindingRewriter, rewrite_functions


@mutator
class _Expand(BindingRewriter):
    def __init__(self, mod: tvm.IRModule, keep: tuple[str, ...]) -> None:
        super().__init__(mod)
        self.keep = keep

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        operator = OPERATORS.get(op_name(binding.value) or "")
        if operator is None or operator.name in self.keep or has_kernel(binding.value):
            return None
        call = binding.value
        operands = [self.new(operand) for operand in call.args]
        if not operator.multiplies:
            operands = [self.widened(operand) for operand in operands]
        result = operator.expand(Expansion(call, tuple(operands), self.emit))
        if isinstance(result, relax.Expr):
            return self.stored(result, call.ty)
        fields = zip(result, call.ty.fields, strict=True)
        return relax.Tuple([self.emit(self.stored(field, want)) for field, want in fields])

    def widened(self, operand: relax.Expr) -> relax.Expr:
        """`operand` in float32 where it is stored lower."""
        return self.emit(relax.op.astype(operand, "float32")) if dtype_of(operand) in LOW else operand

    def stored(self, result: relax.Expr, want: relax.TensorType) -> relax.Expr:
        """`result` in the dtype of the type `want`."""
        result = self.builder_.normalize(result)
        return result if dtype_of(result) == str(want.dtype) else relax.op.astype(result, str(want.dtype))


def expand_operators(mod: tvm.IRModule, keep: tuple[str, ...] = ()) -> tvm.IRModule:
    """Rewrite backward operators and losses to operators of TVM, which compute in float32 and store as was asked.

    Before::                                               After::

        d: bf16 = R.grad.tanh_backward(y, g)                   y1: f32 = R.astype(y, "float32")
                                                               g1: f32 = R.astype(g, "float32")
                                                               s: f32 = R.subtract(1, R.multiply(y1, y1))
                                                               d: bf16 = R.astype(R.multiply(g1, s), "bfloat16")

    Those in `keep` stay as they are.
    """
    return rewrite_functions(mod, _Expand, keep)
