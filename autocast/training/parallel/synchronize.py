"""The pass that has BatchNorm normalize by the statistics of all ranks' batches."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import is_op
from autocast.ir.places import PlacedMutator
from autocast.ir.rewriting import users_of
from autocast.model import Model
from autocast.model.mode import in_training_only
from autocast.operators.own import sync_batch_norm

op = relax.op

#: The field of the result of `sync_batch_norm` that has the number of a channel's elements.
_ELEMENTS = 5


def synchronize_batch_norm(forward: Model, count: int) -> Model:
    """A model whose BatchNorms in training mode take their statistics over the batches of `count` ranks.

    Before::                                       After::

        n = R.nn.batch_norm(x, g, b, mean, var)        n = R.collective.batch_norm(x, g, b, mean, var)
        excess = R.divide(R.subtract(n[2], v), 7)      excess = R.divide(R.subtract(n[2], v), 2 * n[5] - 1)  # 2 ranks
        new_var = R.add(n[2], excess)                  new_var = R.add(n[2], excess)

    Torch's running variance is the unbiased one: the importer adds the excess over what Relax computes, for which all
    elements count that a channel has on any rank.
    """
    mod = tvm.IRModule(forward.mod.functions, attrs=forward.mod.attrs, global_infos=forward.mod.global_infos)
    mod["main"] = _Synchronize(mod, count).visit_expr(forward.main)
    return forward.replace(mod=mod)


@mutator
class _Synchronize(PlacedMutator):
    """Replaces the calls."""

    def __init__(self, mod: tvm.IRModule, count: int) -> None:
        super().__init__(mod)
        self.count = count
        self.bound: dict[relax.Var, Any] = users_of(mod["main"])[0]

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        new = super().visit_call_(call)
        if is_op(call, "relax.nn.batch_norm") and in_training_only(call):
            return sync_batch_norm(*new.args, attrs=call.attrs)
        if (norm := self.norm_of_excess(call)) is not None:
            elements = self.emit(relax.TupleGetItem(self.visit_expr(norm), _ELEMENTS))
            dtype = str(call.ty.dtype)
            total = self.emit(op.multiply(elements, relax.const(float(self.count), dtype)))
            return op.divide(new.args[0], self.emit(op.subtract(total, relax.const(1.0, dtype))))
        return new

    def norm_of_excess(self, call: relax.Call) -> relax.Var | None:
        """The BatchNorm whose running variance a call corrects: it divides by the number of elements but one."""
        if not is_op(call, "relax.divide"):
            return None
        moved: Any = self.bound.get(call.args[0])
        field: Any = self.bound.get(moved.args[0]) if is_op(moved, "relax.subtract") else None
        if not isinstance(field, relax.TupleGetItem) or field.index != 2:
            return None
        whole = self.bound.get(field.tuple_value)
        return field.tuple_value if is_op(whole, "relax.nn.batch_norm") and in_training_only(whole) else None
