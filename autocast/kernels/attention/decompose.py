"""Decompose attention to products and a float32 softmax."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.errors import UnsupportedError
from autocast.ir import dtype_of, is_op
from autocast.kernels.graph.rewriting import BindingRewriter, dims, rewrite_functions

#: (batch, sequence, heads, depth) to (batch, heads, sequence, depth), and back.
_HEADS_FIRST = [0, 2, 1, 3]


@mutator
class _Decompose(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not is_op(call, "relax.nn.attention", "relax.nn.attention_bias"):
            return None
        if call.attrs.window_size is not None:
            raise UnsupportedError(
                f"{call.op.name} of {binding.var.name}: got window_size={call.attrs.window_size}, expected None; "
                "pass the window as a bias of 0 and -inf"
            )
        storage = dtype_of(call)
        query, key, value = (relax.op.permute_dims(self.new(operand), _HEADS_FIRST) for operand in call.args[:3])
        scores = self.emit(
            relax.op.matmul(self.emit(query), relax.op.permute_dims(self.emit(key), [0, 1, 3, 2]), out_dtype="float32")
        )
        scores = self.emit(relax.op.multiply(scores, self.scale(call)))
        if len(call.args) > 3:
            bias = self.new(call.args[3])
            bias = bias if dtype_of(bias) == "float32" else self.emit(relax.op.astype(bias, "float32"))
            scores = self.emit(relax.op.add(scores, bias))
        if call.attrs.causal_mask is not None:
            allowed = self.causal_mask(str(call.attrs.causal_mask), *dims(scores)[2:])
            scores = self.emit(relax.op.where(allowed, scores, relax.const(float("-inf"), "float32")))
        probabilities = self.emit(relax.op.nn.softmax(scores, axis=-1))
        if storage != "float32":
            probabilities = self.emit(relax.op.astype(probabilities, storage))
        result = self.emit(relax.op.matmul(probabilities, self.emit(value), out_dtype="float32"))
        if storage != "float32":
            result = self.emit(relax.op.astype(result, storage))
        return relax.op.permute_dims(result, _HEADS_FIRST)

    def scale(self, call: relax.Call) -> relax.Expr:
        """The factor of the scores: the attribute, or 1 / sqrt(depth)."""
        depth = dims(call.args[0])[3]
        if call.attrs.scale is not None:
            return relax.const(float(call.attrs.scale), "float32")
        if isinstance(depth, int):
            return relax.const(depth**-0.5, "float32")
        raise UnsupportedError(f"{call.op.name}: got a run-time head depth and no scale; pass scale=")

    def causal_mask(self, kind: str, queries: Any, keys: Any) -> relax.Expr:
        """A (queries, keys) bool mask, true where a query may see a key."""
        offset = 0
        if kind == "BottomRight":
            difference = keys - queries
            offset = abs(difference) if isinstance(difference, int) else tvm.tirx.abs(difference)
        rows = self.emit(relax.op.arange(offset, queries + offset, 1, "int64"))
        columns = self.emit(relax.op.arange(0, keys, 1, "int64"))
        return self.emit(relax.op.greater_equal(relax.op.expand_dims(rows, 1), columns))


def decompose_attention(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite attention over (batch, sequence, heads, depth) to products around a float32 softmax.

    Before::                                       After::

        o: bf16 = R.nn.attention_bias(q, k, v, b)      s: f32 = R.matmul(q', R.permute_dims(k'), out_dtype="float32")
                                                       p: bf16 = R.astype(R.nn.softmax(s * scale + b), "bfloat16")
                                                       o: bf16 = R.permute_dims(R.astype(R.matmul(p, v', "float32")))

    Primed operands have their heads first. Scores and softmax are float32 whatever the storage; probabilities are
    narrowed to it for the second product.
    """
    return rewrite_functions(mod, _Decompose)
