"""Replace what writes rows by their numbers by generated kernels, which state lets write in its place."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import FLOATS, dims, is_op, shape_of, storage
from autocast.ir.rewriting import rewrite_functions, users_of
from autocast.kernels.backend import Backend
from autocast.kernels.explain import explain
from autocast.kernels.matching.kernel_rewriter import KernelRewriter
from autocast.kernels.specs.layout import RowWrites
from autocast.kernels.specs.sizes import DimensionNames
from autocast.kernels.storage import BITS

#: What writes rows by their numbers.
ROW_WRITES = ("relax.nn.index_copy",)


@mutator
class _RowWrites(KernelRewriter):
    def enter(self, function: relax.Function) -> None:
        self.bound, self.users = users_of(function)

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not is_op(call, *ROW_WRITES):
            return None
        x, numbers, rows = call.args
        if any(shape_of(tensor) is None for tensor in call.args) or storage(x) not in BITS:
            explain("row writes", binding.var, f"a shape is not known, or it is stored as {storage(x)}", taken=False)
            return None
        cast = self.value_of(rows)
        if is_op(cast, "relax.astype") and {storage(rows), storage(cast.args[0])} <= {*FLOATS}:
            rows = cast.args[0]  # it is converted as it is written
        names = DimensionNames()
        kept, places, new = (
            (tuple(names.dim(dim) for dim in dims(tensor)), storage(tensor)) for tensor in (x, numbers, rows)
        )
        spec = RowWrites(kept, places, new, int(call.attrs.axis))
        explain("row writes", binding.var, "", taken=True)
        title = f"{'x'.join(map(str, kept[0]))}_{storage(x)}"
        kernel = self.kernel(spec, lambda number: f"index_copy{number}_{title}")
        return self.call(kernel, (x, numbers, rows), [binding.var])[0]


def lower_row_writes(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Rewrite writes of rows by their numbers to kernels.

    Before::                                                    After::

        r: bf16 = R.astype(new, "bfloat16")                         c = R.call_tir(index_copy0_1x2x512x64_bfloat16,
        c: bf16 = R.nn.index_copy(cache, places, r, axis=2)                        (cache, places, new))
    """
    return rewrite_functions(mod, _RowWrites, backend)
