"""Replace recurrences over time by generated kernels, whose weights are packed before."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import is_op, storage
from autocast.ir.rewriting import rewrite_functions, users_of
from autocast.kernels.backend import Backend
from autocast.kernels.explain import explain
from autocast.kernels.matching.kernel_rewriter import KernelRewriter
from autocast.kernels.matching.recurrent.calls import declined, recurrence_of
from autocast.operators import Kind, is_kind


@mutator
class _Recurrences(KernelRewriter):
    def enter(self, function: relax.Function) -> None:
        self.bound, self.users = users_of(function)

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call: Any = binding.value
        if not is_kind(call, Kind.RECURRENCE):
            return None
        reason = declined(call)
        explain("recurrences", binding.var, reason or "a kernel", taken=reason is None)
        if reason is not None:
            return None
        spec = recurrence_of(call)
        title = f"{spec.cell}{'_backward' * spec.backward}"
        operands = [self.new(operand) for operand in call.args]
        weight = self.stored(call.args[1])
        layout = self.backend.packed_recurrent(spec, storage(weight))
        pack = self.kernel(layout, lambda number: f"pack_{title}{number}_{spec.hidden}_{layout.dtype}")
        operands[1] = self.emit(relax.call_tir(pack, [self.new(weight)], self.results[pack]))
        kernel = self.kernel(spec, lambda number: f"{title}{number}_{spec.hidden}_{spec.weight_dtype}")
        types = [relax.TensorType(field.shape, str(field.dtype)) for field in call.ty.fields]
        return relax.call_tir(kernel, operands, types)

    def stored(self, weight: relax.Expr) -> relax.Expr:
        """An argument of the function that is narrowed as it is packed, instead of before."""
        value = self.value_of(weight)
        narrowed = is_op(value, "relax.astype") and storage(weight) in self.backend.multiplies
        return value.args[0] if narrowed and value.args[0] not in self.bound else weight


def lower_recurrences(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Rewrite every recurrence to a call of a generated kernel.

    Before::                                          After::

        y = R.nn.lstm(x, w, h, c, reverse=False)          p = R.call_tir(pack_lstm0_64_float32, (w,))
                                                          y = R.call_tir(lstm0_64_float32, (x, p, h, c))
    """
    return rewrite_functions(mod, _Recurrences, backend)
