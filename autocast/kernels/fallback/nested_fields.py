"""Keep TVM's fusion from fields of fields: it would make a group of them that no operator names, and stop there."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir.rewriting import BindingRewriter, rewrite_functions


@mutator
class _Apart(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        value = binding.value
        if not isinstance(value, relax.TupleGetItem):
            return None
        inner = value.tuple_value
        if not isinstance(self.values.get(inner), relax.TupleGetItem):
            return None
        return relax.TupleGetItem(self.builder_.match_cast(self.new(inner), inner.ty), value.index)


def keep_fields_apart(mod: tvm.IRModule) -> tvm.IRModule:
    """Put a check of its type between a field that is a tuple and the fields of that.

    Before::                      After::

        a = t[1]                      a = t[1]
        b = a[0]                      c = R.match_cast(a, R.Tuple(...))
                                      b = c[0]
    """
    return rewrite_functions(mod, _Apart)
