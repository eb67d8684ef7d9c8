"""What calls may do, asked once for all calls that ask the same."""

from __future__ import annotations

from typing import Any

import type_hints
from autocast.ir import Bound, place_of
from autocast.passes.casting.leaves import Tree, signature
from autocast.passes.casting.modes import Ruling, decide
from autocast.passes.casting.results import dtype_attributes
from autocast.passes.casting.signatures import Signature

#: Rulings by the tables' own rules. They and their operators are no part of a module: what one asks, the next does.
_of_tables: dict[Any, Ruling] = {}


class Rulings:
    """The rulings of one module: rules of the tables look at nothing but dtypes, others are asked for each call."""

    def __init__(self, amp: str) -> None:
        self.amp = amp
        self._known: dict[Any, Ruling] = {}

    def of(
        self,
        bound: Bound,
        alike: Signature,
        trees: list[Tree],
        result: Tree,
        row: type_hints.Row | None,
        derived: type_hints.DerivedCall | None,
        function: str,
    ) -> Ruling:
        """What a call of `function` may do, by the rule of `row`; `trees` and `result` are of arguments and result."""
        rule = row and row.rule
        if row is not None and not isinstance(rule, type_hints.TableRule):
            return self._ask(bound, trees, result, row, derived, function)
        ruling = alike.rulings.get(rule)
        if ruling is None:
            asked = signature(trees), signature([result]), dtype_attributes(bound.value)
            question = self.amp, bound.op, asked, rule, derived and derived.positions
            is_of_tables = row is not None and row is type_hints.table_row(row.name)
            known = _of_tables if is_of_tables else self._known
            if question not in known:
                known[question] = self._ask(bound, trees, result, row, derived, function)
            ruling = alike.rulings[rule] = known[question]
        return ruling

    def _ask(
        self,
        bound: Bound,
        trees: list[Tree],
        result: Tree,
        row: type_hints.Row | None,
        derived: type_hints.DerivedCall | None,
        function: str,
    ) -> Ruling:
        call, var, args = bound.value, bound.var, bound.args

        def where() -> str:
            types = ", ".join(str(arg.ty) for arg in args)
            module = place_of(var).module
            said = f"%{var.name} = {row.name if row else 'call'}({types}) in @{function}"
            return f"{said} ({module})" if module else said

        if derived is not None:
            derived = type_hints.derived_name(call)  # with the arguments of this call
        return decide(call, args, trees, (var.ty, result), row, derived, self.amp, where)
