"""TVM's memory plan, which asks of each two sizes whether they are equal: computed ones have a name meanwhile."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax, tirx

from autocast.ir import identity, relax_functions, with_functions

#: What sums and products of sizes are not: the analyzer compares these by splitting them into cases.
_COMPUTED = (tirx.FloorDiv, tirx.FloorMod, tirx.Max, tirx.Min, tirx.Select)


@tvm.transform.module_pass(opt_level=0, name="PlanMemory")
class PlanMemory:
    """Share storage between tensors of which one is dead before the other begins (`StaticPlanBlockMemory`).

    What is planned::                           What comes of it::

        a = alloc_tensor((size_0 * 8,), ...)        s = alloc_storage((n // 2 * 32,))
        b = alloc_tensor((8, size_0), ...)          a = alloc_tensor(s, (n // 2 * 8,), ...)
                                                    b = alloc_tensor(s, (8, n // 2), ...)

    A size that is at most a number is planned as that number, and keeps its own expression.
    """

    def transform_module(self, mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """The module, as the class says."""
        names = _Names()
        functions = {var: names.given(function) for var, function in relax_functions(mod)}
        planned = relax.transform.StaticPlanBlockMemory()(with_functions(mod, functions) if names.values else mod)
        if not names.values:
            return planned
        return with_functions(planned, {var: names.taken(f) for var, f in relax_functions(planned)})


class _Names:
    """Names for computed sizes, and their values by the names' identities."""

    def __init__(self) -> None:
        self.values: dict[int, tirx.Expr] = {}
        self._names: dict[int, list[tirx.Var]] = {}
        self._analyzer = tvm.sym.Analyzer()

    def given(self, function: relax.Function) -> relax.Function:
        bounds = (function.attrs or {}).get("tir_var_upper_bound", {})

        def named(size: tirx.Expr) -> tirx.Expr:
            known = self._names.setdefault(tvm_ffi.structural_hash(size), [])
            name = next((one for one in known if tvm_ffi.structural_equal(self.values[identity(one)], size)), None)
            if name is None and not self._is_bounded(size, bounds):
                name = tirx.Var("size", size.ty.dtype)
                known.append(name)
                self.values[identity(name)] = size
            return size if name is None else name

        return tvm_ffi.structural_map(function, (_COMPUTED, named), order="pre")

    def _is_bounded(self, size: tirx.Expr, bounds: tvm.ir.Map) -> bool:
        if any(name.name in bounds for name in tirx.analysis.undefined_vars(size)):
            return True
        return self._analyzer.const_int_bound(size).max_value != tvm.sym.ConstIntBound.POS_INF

    def taken(self, function: relax.Function) -> relax.Function:
        return tvm_ffi.structural_map(function, (tirx.Var, lambda name: self.values.get(identity(name), name)))
