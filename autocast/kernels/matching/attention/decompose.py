"""Decompose attention to products and a float32 softmax."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import dtype_of, is_op
from autocast.ir.rewriting import BindingRewriter, rewrite_functions
from autocast.operators.own.attention import HEADS_FIRST, masked_scores


@mutator
class _Decompose(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not is_op(call, "relax.nn.attention", "relax.nn.attention_bias"):
            return None
        storage = dtype_of(call)
        query, key, value = (
            self.emit(relax.op.permute_dims(self.new(operand), HEADS_FIRST)) for operand in call.args[:3]
        )
        bias = self.new(call.args[3]) if len(call.args) > 3 else None
        scores = masked_scores(call, query, key, bias, self.emit)
        wide = dtype_of(scores)
        probabilities = self.emit(relax.op.nn.softmax(scores, axis=-1))
        if storage != wide:
            probabilities = self.emit(relax.op.astype(probabilities, storage))
        result = self.emit(relax.op.matmul(probabilities, value, out_dtype=wide))
        if storage != wide:
            result = self.emit(relax.op.astype(result, storage))
        return relax.op.permute_dims(result, HEADS_FIRST)


def decompose_attention(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite attention over (batch, sequence, heads, depth) to products around a float32 softmax.

    Before::                                       After::

        o: bf16 = R.nn.attention_bias(q, k, v, b)      s: f32 = R.matmul(q', R.permute_dims(k'), out_dtype="float32")
                                                       p: bf16 = R.astype(R.nn.softmax(s * scale + b), "bfloat16")
                                                       o: bf16 = R.permute_dims(R.astype(R.matmul(p, v', "float32")))

    Primed operands have their heads first. Scores and softmax are float32 however low the storage (float64 where it
    is that); probabilities are narrowed to it for the second product.
    """
    return rewrite_functions(mod, _Decompose)
