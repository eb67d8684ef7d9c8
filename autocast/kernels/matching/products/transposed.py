"""Let products answer the way round that their reader wants: (AB)' is B'A', and both are read in either way."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import dims, is_op, permutation
from autocast.ir.rewriting import BindingRewriter, rewrite_functions, users_of


@mutator
class _Transposed(BindingRewriter):
    def enter(self, function: relax.Function) -> None:
        self.bound, _ = users_of(function)

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not is_op(call, "relax.permute_dims") or permutation(call) != [1, 0]:
            return None
        product: Any = self.bound.get(call.args[0])
        if not is_op(product, "relax.matmul") or self.uses[call.args[0]] != 1:
            return None
        left, right = product.args
        if len(dims(left)) != 2 or len(dims(right)) != 2:
            return None
        return relax.op.matmul(self.transposed(right), self.transposed(left), out_dtype=product.attrs.out_dtype)

    def transposed(self, matrix: relax.Expr) -> relax.Expr:
        """`matrix` the other way round: what it was transposed from, if it was."""
        value: Any = self.bound.get(matrix) if isinstance(matrix, relax.Var) else None
        if is_op(value, "relax.permute_dims"):
            return self.new(value.args[0])
        return self.emit(relax.op.permute_dims(self.new(matrix)))


def transpose_products(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite the transposition of a product of matrices to the product of the transposed matrices.

    Before::                                    After::

        a = R.matmul(R.permute_dims(x), g)          b = R.matmul(R.permute_dims(g), x)
        b = R.permute_dims(a)

    The gradient of a layer's weight is that: x'g for the transposed weight that the forward multiplies with.
    """
    return rewrite_functions(mod, _Transposed)
