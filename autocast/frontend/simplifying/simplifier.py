"""The traversal that applies the rules of `normalize`."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import all_bindings, is_op, op_name, place_of
from autocast.ir.places import PlacedMutator

#: Looks at one call and answers with an equal, simpler expression, or None.
Simplification = Callable[["Simplifier", relax.Call], "relax.Expr | None"]


@mutator
class Simplifier(PlacedMutator):
    """Applies the rules to every call, front to back, so that a rule sees arguments that are simple already."""

    def __init__(
        self, mod: tvm.IRModule, rules: dict[str, tuple[Simplification, ...]], uses: dict[relax.Var, int]
    ) -> None:
        super().__init__(mod)
        self.rules = rules
        self.uses = uses
        for binding in all_bindings(mod["main"].body):  # so that what is emitted has names of its own
            self.builder_.get_unique_name(binding.var.name)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.builder_.normalize(super().visit_call_(call))
        for rule in self.rules.get(op_name(call) or "", ()):
            result = rule(self, call)
            if result is not None:
                return result
        return call

    def bound(self, expr: relax.Expr, *names: str) -> relax.Call | None:
        """The call that `expr` is, or is bound to in the same region, if it calls one of the operators `names`."""
        if isinstance(expr, relax.Var):
            if place_of(expr).region != self.place.region:
                return None
            expr = self.lookup_binding(expr)
        return expr if expr is not None and is_op(expr, *(f"relax.{name}" for name in names)) else None

    def only_use(self, expr: relax.Expr) -> bool:
        """Whether nothing but the call at hand reads `expr`."""
        return self.uses.get(expr, 1) <= 1
