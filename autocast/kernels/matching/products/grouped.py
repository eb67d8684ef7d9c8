"""Replace the products of mixtures of experts by generated kernels."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import FLOATS, dims, is_op, permutation, shape_of, storage
from autocast.ir.rewriting import rewrite_functions, users_of
from autocast.kernels.backend import Backend
from autocast.kernels.explain import explain
from autocast.kernels.matching.kernel_rewriter import KernelRewriter
from autocast.kernels.specs.products import GroupedProduct

_NAME = "relax.nn.grouped_matmul"


def declined(call: relax.Call) -> str | None:
    """Why no kernel computes the grouped product `call`; None where one does."""
    x, weight, ends = call.args
    if storage(x) != storage(weight) or storage(x) not in FLOATS or storage(ends) not in ("int32", "int64"):
        return f"it multiplies {storage(x)} and {storage(weight)}, with ends that are {storage(ends)}"
    if not all(isinstance(size, int) and size > 0 for size in shape_of(weight) or (0,)):
        return "the matrices are empty, or their shape is not known"
    return "it has no rows" if dims(x)[0] == 0 else None


def has_grouped_kernel(call: relax.Call) -> bool:
    """Whether `call` is a grouped product that a kernel computes."""
    return is_op(call, _NAME) and declined(call) is None


@mutator
class _Grouped(KernelRewriter):
    def enter(self, function: relax.Function) -> None:
        self.bound, self.users = users_of(function)

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call: Any = binding.value
        if not is_op(call, _NAME):
            return None
        reason = declined(call)
        explain("grouped_products", binding.var, reason or "a kernel", taken=reason is None)
        if reason is not None:
            return None
        x, weight, ends = call.args
        groups, k, n = dims(weight)
        value = self.value_of(weight)
        transposed = is_op(value, "relax.permute_dims") and permutation(value) == [0, 2, 1]
        weight = value.args[0] if transposed else weight
        rows = dims(x)[0]
        m = rows if isinstance(rows, int) else None
        spec = GroupedProduct(m, n, k, groups, storage(x), storage(ends), transposed)
        size = f"{'any' if m is None else m}x{n}x{k}"
        kernel = self.kernel(spec, lambda number: f"grouped{number}_{groups}_{size}_{storage(x)}")
        return self.call(kernel, [x, weight, ends], [binding.var])[0]


def lower_grouped_products(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Rewrite every `nn.grouped_matmul` to a call of a generated kernel, which reads transposed matrices as they are.

    Before::                                        After::

        t = R.permute_dims(w, [0, 2, 1])                y = R.call_tir(grouped0_4_16x64x32_float32, (x, w, ends))
        y = R.nn.grouped_matmul(x, t, ends)
    """
    return rewrite_functions(mod, _Grouped, backend)
