"""Replace gradients of lookups, with the dense gradient that they are added to, by generated kernels."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import dims, is_op, same_shape, shape_of, storage
from autocast.ir.rewriting import rewrite_functions, users_of
from autocast.kernels.backend import Backend
from autocast.kernels.explain import explain
from autocast.kernels.matching.kernel_rewriter import KernelRewriter
from autocast.kernels.specs.reductions import Scatter
from autocast.kernels.specs.sizes import DimensionNames
from autocast.kernels.storage import LOW

#: The gradients of lookups.
SCATTERS = ("relax.grad.take_backward",)


@mutator
class _Scatters(KernelRewriter):
    def enter(self, function: relax.Function) -> None:
        self.bound, self.users = users_of(function)
        #: What a kernel defines: the gradient of a lookup, and the dense gradient that it is added to, if any.
        self.ends: dict[relax.Var, tuple[relax.Call, relax.Expr | None]] = {}
        taken: set[relax.Var] = set()
        for var, value in self.bound.items():
            if not is_op(value, *SCATTERS):
                continue
            reason = _declined(value)
            explain("scatter", var, reason or "", taken=reason is None)
            if reason is None:
                end, base = self.end(var, taken)
                self.ends[end] = value, base
                taken.add(end)

    def end(self, var: relax.Var, taken: set[relax.Var]) -> tuple[relax.Var, relax.Expr | None]:
        """The sum of `var` and another gradient where that is all that reads it; `var` itself elsewhere."""
        reader = self.only_user(var)
        total: Any = None if reader is None else self.bound[reader]
        if not is_op(total, "relax.add") or reader in taken:
            return var, None
        base = total.args[1] if total.args[0].same_as(var) else total.args[0]
        fits = isinstance(base, relax.Var) and storage(base) == "float32" and same_shape(shape_of(base), dims(var))
        return (reader, base) if fits and not base.same_as(var) else (var, None)

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        if binding.var not in self.ends:
            return None
        call, base = self.ends[binding.var]
        adjoint, _, numbers = call.args
        value = self.value_of(adjoint)
        if is_op(value, "relax.astype") and storage(value.args[0]) in LOW:
            adjoint = value.args[0]  # loads widen
        names = DimensionNames()
        rows, labels, out = (tuple(names.dim(dim) for dim in dims(tensor)) for tensor in (adjoint, numbers, call))
        axis = int(call.attrs.axis or 0) % len(out)
        clips = str(getattr(call.attrs, "mode", "")) == "clip"  # the lookup's attributes, if it made this call
        spec = Scatter((rows, storage(adjoint)), (labels, storage(numbers)), out, axis, base is not None, clips)
        title = f"{'x'.join(map(str, out))}_{storage(adjoint)}"
        kernel = self.kernel(spec, lambda number: f"scatter{number}_{title}")
        return self.call(kernel, (adjoint, numbers, *([] if base is None else [base])), [binding.var])[0]


def _declined(call: relax.Call) -> str | None:
    """Why no kernel computes `call`; None where one does."""
    adjoint, table, numbers = call.args
    if any(shape_of(tensor) is None for tensor in (adjoint, table, numbers)):
        return "a shape is not known"
    if storage(call) != "float32" or storage(adjoint) not in ("float32", *LOW):
        return f"it adds {storage(adjoint)} to {storage(call)}"
    if not storage(numbers).startswith(("int", "uint")):
        return f"its rows are named by {storage(numbers)}"
    if any(isinstance(dim, int) and dim == 0 for dim in (*dims(adjoint), *dims(table))):
        return "it has no elements"
    return None


def lower_scatters(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Rewrite the gradients of lookups to kernels that add rows, to a dense gradient of the same table if there is one.

    Before::                                            After::

        a = R.grad.take_backward(g, table, numbers)         b = R.call_tir(scatter0_9x4_float32, (g, numbers, dense))
        b = R.add(dense, a)

    The table of an embedding that is the last layer's weight too has both: its gradient is made in one place.
    """
    return rewrite_functions(mod, _Scatters, backend)
