"""Compute once what is computed twice in the same region, and on the same side of a conversion to float32:
`EliminateCommonSubexpr`, which knows no places, would join what these separate."""

from __future__ import annotations

from collections import defaultdict

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.ir.places import canonicalize_bindings, place_of
from autocast.operators import MOVING, is_kind


def merge_common_calls(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with one call for all equal ones of a region of its pure `main`, and of a branch of it."""
    mod = mod.clone()
    mod["main"] = _Merger(mod).visit_expr(mod["main"])
    return canonicalize_bindings(mod)


@mutator
class _Merger(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.known: dict[tuple[int, str, str], list[tuple[relax.Var, relax.Expr]]] = defaultdict(list)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = self.builder_.normalize(self.visit_expr(binding.value))
        place = place_of(binding.var)
        converted = "" if is_kind(value, *MOVING) else place.converted
        equals = self.known[tvm_ffi.structural_hash(value), place.region, converted]
        var = next((var for var, known in equals if tvm_ffi.structural_equal(known, value)), None)
        if var is None:
            equals.append((binding.var, value))
        elif isinstance(binding.var, relax.DataflowVar):
            self.set_var_remap(binding.var, var)
            return
        self.builder_.emit_normalized(relax.VarBinding(binding.var, value if var is None else var))

    def visit_seq_expr_(self, sequence: relax.SeqExpr) -> relax.Expr:
        """A branch, which knows what was computed before it, and of which nothing is known after it."""
        outside = self.known
        self.known = defaultdict(list, {key: list(equals) for key, equals in outside.items()})
        try:
            return super().visit_seq_expr_(sequence)
        finally:
            self.known = outside
