"""Who decides a call when several things are said of it: this order, and no other.

    region > name pattern > custom hint > operator list > preset > rule

- region: `disable_autocast` in the author's code, then `low_regions`, `float32_regions`, then `guarded`.
- name pattern: `low_names`, then `float32_names`.
- custom hint: the innermost active `CustomTypeHint` block that names the operator.
- operator list: `conditional_float32_ops`, then `low_ops`, `float32_ops`, `unsupported_ops`, `widest_ops`, `mixed_ops`.
- preset: what the policy's preset makes of the operator.
- rule: the operator's row in the tables.

The first level that says anything decides. Whoever decides, it is a casting rule that the planner asks.

A call of a backward pass is what the level says of it itself; where it says nothing, and keeps the forward call whose
gradient this is in float32, so is this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import tvm
from tvm import relax

import type_hints
from autocast.errors import PolicyError
from autocast.ir import Bound, Place, Reading, identity, op_name, place_of
from autocast.messages import nearest
from autocast.policy.choices import rule_for
from autocast.policy.facts import (
    after_float_conversions,
    overflowing,
    parameter_names,
    parameters_out_of_range,
    unholdable,
)
from autocast.policy.lists import OperatorLists, Said
from autocast.policy.patterns import Patterns, with_parents
from autocast.policy.policy import Policy
from autocast.policy.presets import PRESETS, UNSUPPORTED
from autocast.policy.unused import Unused, holder
from type_hints import Row

LEVELS = ("region", "name pattern", "custom hint", "operator list", "preset", "rule")


class Ruling(NamedTuple):
    """The casting rule that a call is asked, and the level (one of `LEVELS`) that said so."""

    row: Row
    level: str


class Decisions:
    """What a policy decides for the calls of one module.

    Parameters
    ----------
    policy
    reading
        The module, whole: the names of parameters, and what follows a conversion, are looked up in it.
    params
        Main's last parameters by the names that they have in their torch module. A call that reads one of which the
        low dtype cannot hold the value, or such a literal, is float32 unless a region, a name pattern, a custom hint
        or an operator list says otherwise. A custom hint that follows says nothing of it.
    """

    def __init__(
        self, policy: Policy, reading: Reading, params: Mapping[str, tvm.runtime.Tensor] = MappingProxyType({})
    ) -> None:
        self.policy = policy
        self._preset = PRESETS[policy.preset]
        self._low_names, self._float32_names = Patterns(policy.low_names), Patterns(policy.float32_names)
        self._low_regions, self._float32_regions = Patterns(policy.low_regions), Patterns(policy.float32_regions)
        self._lists = OperatorLists(policy)
        self._parameters = parameter_names(reading, tuple(params)) if self._low_names or self._float32_names else {}
        self._lost = parameters_out_of_range(params, policy.dtype)
        infinite = overflowing(params, self._lost, policy.dtype)
        self._unholdable = unholdable(reading, tuple(params), self._lost, policy.dtype, infinite)
        #: Parameters that the low dtype cannot hold, and why, of which some call is therefore float32.
        self.out_of_range: dict[str, str] = {}
        self._after = after_float_conversions(reading) if self._preset.ends_at_float_conversions else frozenset()
        self._rulings: dict[tuple[str, str, str | None], Ruling | None] = {}
        #: Where nothing is said of single calls, those of an operator in a module and a region are alike.
        self._by_module = bool(self._low_regions or self._float32_regions)
        self._by_call = bool(self._low_names or self._float32_names or policy.conditional_float32_ops)
        self._alike: dict[tuple[str, int, str, str, str], Ruling | None] = {}
        #: (operator, variable) of calls that a name, a hint or a list decides -> which level did, and what it said.
        self._forward: dict[tuple[str, str], tuple[str, Said]] = {}
        self._seen: dict[str, set[str]] = {"operators": set(), "names": set(), "regions": set()}

    def ruling(self, name: str, bound: Bound) -> Ruling | None:
        """Who decides a call of an operator, and with which rule; None where the operator has no row at all.

        Parameters
        ----------
        name
            The operator's full name, or the derived operator's that the call is.
        bound
            The call, and the variable that it is bound to.
        """
        place = place_of(bound.var)
        question = name, bound.op, place.module if self._by_module else "", place.region, place.forward
        is_alone = self._by_call or bool(place.forward and self._forward)
        if is_alone or bound.key in self._after or self._reads_unholdable(bound):
            return self._first(name, bound, place)
        if question in self._alike:
            return self._alike[question]
        found = self._first(name, bound, place)
        listed = name in self._lists or op_name(bound.value) in self._lists
        if not listed and (found is None or found.level != "custom hint"):  # these remember each call
            self._alike[question] = found
        return found

    def _first(self, name: str, bound: Bound, place: Place) -> Ruling | None:
        """What the first level decides that says anything."""
        call, var = bound.value, bound.var
        operator = op_name(call) or name
        self._seen["operators"].update((name, operator))
        by_region, by_name = self._region(var, place), self._name(call, var)
        if by_region is not None:
            return _ruled(name, by_region, "region")
        level, of_forward = self._of_forward(name, place)
        if by_name is None and level == "name pattern":
            by_name = of_forward
        if by_name is not None:
            return self._noted(name, operator, var, place, by_name, "name pattern")
        if custom := _custom(name):
            if custom.row.label == "follow" and (read := self._read_unholdable(name, operator, call, custom.row)):
                lost = f"{self._of_unholdable(read)}, which CustomTypeHint's {custom.row.rule!r} does not change"
                return _ruled(name, Said("float32", lost), "custom hint")
            if custom.row.label == "low":
                self._noted(name, operator, var, place, Said("low", custom.row.why), "custom hint")
            return custom
        if of_forward is not None and level == "custom hint":
            return _ruled(name, of_forward, level)
        by_list = self._lists.condition(name, operator, call) or self._lists.said(name, operator)
        if by_list is None and level == "operator list":
            by_list = of_forward
        if by_list is not None:
            return self._noted(name, operator, var, place, by_list, "operator list")
        why = "computed from an author's conversion to float32" if bound.key in self._after else None
        if self._reads_unholdable(bound):
            why = self._cannot_hold(name, operator, call) or why
        why = why or self._of_no_product(name, place)
        key = name, operator, why
        if key not in self._rulings:
            self._rulings[key] = self._operator(name, why)
        return self._rulings[key]

    def overflows(self, var: relax.Var) -> bool:
        """Whether the low dtype cannot hold what a variable may be."""
        return identity(var) in self._unholdable

    def _reads_unholdable(self, bound: Bound) -> bool:
        return bool(self._unholdable) and not self._unholdable.keys().isdisjoint((identity(bound.value), *bound.keys))

    def _of_forward(self, name: str, place: Place) -> tuple[str, Said | None]:
        """Which level decided the forward call whose gradient this is part of, and what it said.

        It holds for all of a gradient in float32, and for the comparisons of a low one: no element equals the maximum
        of others where that alone was rounded.
        """
        level, said = self._forward.get((place.forward, place.forward_result), ("", None))
        row = type_hints.table_row(name)
        if said is None or (said.choice == "low" and (row is None or row.family != "logic")):
            return "", None
        return level, Said(said.choice, f"{said.why}, and this is the gradient of {place.forward}")

    def _of_no_product(self, name: str, place: Place) -> str | None:
        """Why a product stays as exact as the call whose gradient it computes: resizing has such gradients."""
        row, forward = type_hints.table_row(name), type_hints.table_row(place.forward)
        if row is None or forward is None or row.label != "low" or forward.label == "low":
            return None
        if self._preset.choose(forward) == "low":
            return None
        return f"it is part of the gradient of {place.forward}, which multiplies nothing"

    def _noted(self, name: str, operator: str, var: relax.Var, place: Place, said: Said, level: str) -> Ruling | None:
        """The ruling of a name, a hint or a list, which is remembered for the gradients of what it decides."""
        if said.choice in ("float32", "low") and not place.forward:
            self._forward[operator, var.name] = level, said
        return _ruled(name, said, level)

    def _cannot_hold(self, name: str, operator: str, call: relax.Call) -> str | None:
        """What a call reads that the low dtype cannot hold, and that nobody but a preset could make it read."""
        row = type_hints.table_row(name)
        if row is None or name in self._lists or operator in self._lists:
            return None
        choice = self._preset.choose(row)
        if choice in ("leave", "float32") or (choice == "rule" and row.label == "full"):
            return None
        read = self._read_unholdable(name, operator, call, row)
        if not read:
            return None
        if row.family != "layout":  # what moves a parameter leaves it to others
            self.out_of_range.update((parameter, self._lost[parameter]) for parameter in read if parameter is not None)
        return self._of_unholdable(read)

    def _read_unholdable(self, name: str, operator: str, call: relax.Call, row: Row) -> list[str | None]:
        """Of the arguments that a rule concerns, what the low dtype cannot hold: parameters' names, None for others.

        The call stands for numbers of its own that are no arguments.
        """
        which = getattr(row.rule, "which", None) if name == operator else None
        concerned = [call, *(arg for index, arg in enumerate(call.args) if which is None or index in which)]
        return [self._unholdable[key] for key in map(identity, concerned) if key in self._unholdable]

    def _of_unholdable(self, read: Sequence[str | None]) -> str:
        parameter = next((parameter for parameter in read if parameter is not None), None)
        what = f"the parameter {parameter}, which" if parameter is not None else "a literal that"
        return f"{what} {self.policy.dtype} cannot hold"

    def unused(self) -> tuple[Unused, ...]:
        """The entries, of active `CustomTypeHint` blocks too, that concern nothing in the module."""
        policy, names, regions = self.policy, self._seen["names"], self._seen["regions"]
        operators = {name.removeprefix("relax.") for name in self._seen["operators"]}
        conditional = {operator for operator, _, _ in policy.conditional_float32_ops}
        custom = {name.removeprefix("relax.") for name in type_hints.active_names()}
        rows = (
            ("Policy: low_ops", "operator", {*policy.low_ops} - operators, operators),
            ("Policy: float32_ops", "operator", {*policy.float32_ops} - operators, operators),
            ("Policy: widest_ops", "operator", {*policy.widest_ops} - operators, operators),
            ("Policy: conditional_float32_ops", "operator", conditional - operators, operators),
            ("CustomTypeHint", "operator", custom - operators, operators),
            ("Policy: low_names", "name", self._low_names.unmatched(names), names),
            ("Policy: float32_names", "name", self._float32_names.unmatched(names), names),
            ("Policy: low_regions", "torch module", self._low_regions.unmatched(regions), regions),
            ("Policy: float32_regions", "torch module", self._float32_regions.unmatched(regions), regions),
        )
        return tuple(
            Unused(field, entry, what, holder(entry, operators) or nearest(entry, known))
            for field, what, entries, known in rows
            for entry in sorted(entries)
        )

    # -- the levels --------------------------------------------------------------------------------

    def _region(self, var: relax.Var, place: Place) -> Said | None:
        module, region, *_ = place
        paths = with_parents(module) if self._low_regions or self._float32_regions else []
        self._seen["regions"].update(paths)
        if region not in ("", "guard"):
            return self._written(region, var, place)
        if paths:
            if match := self._low_regions.first(paths):
                return Said("low", f"low_regions: {match.pattern!r} selects {match.name}")
            if match := self._float32_regions.first(paths):
                return Said("float32", f"float32_regions: {match.pattern!r} selects {match.name}")
        if self.policy.guarded and region != "guard":
            return Said("leave", "guarded: it is in no fp16_guard")
        return None

    def _written(self, region: str, var: relax.Var, place: Place) -> Said:
        """What a region in the author's code makes of a call."""
        if region == "leave":
            return Said("leave", "in the author's disable_autocast()")
        if region not in ("float32", self.policy.dtype):
            origin = f" of {place.module}" if place.module else ""
            raise PolicyError(
                f"Policy: %{var.name}{origin} is in the author's disable_autocast(dtype={region!r}), and the policy's "
                f"dtype is {self.policy.dtype!r}; expected the same 16-bit dtype in both. Try dtype={region!r} here, "
                "or disable_autocast() there, which takes the dtypes that the code says"
            )
        return Said("float32" if region == "float32" else "low", f"in the author's disable_autocast({region!r})")

    def _name(self, call: relax.Call, var: relax.Var) -> Said | None:
        if not (self._low_names or self._float32_names):
            return None
        names = [var.name]
        for arg in call.args:
            names += sorted(self._parameters.get(identity(arg), ()))
        self._seen["names"].update(names)
        if match := self._low_names.first(names):
            return Said("low", f"low_names: {match.pattern!r} matches {match.name}")
        if match := self._float32_names.first(names):
            return Said("float32", f"float32_names: {match.pattern!r} matches {match.name}")
        return None

    def _of_operator(self, name: str) -> Ruling | None:
        """What is made of every call of an operator of which nothing else is said."""
        said = self._lists.said(name, name)
        return _ruled(name, said, "operator list") if said is not None else self._operator(name)

    def _operator(self, name: str, exempt: str | None = None) -> Ruling | None:
        """What the preset and the tables make of an operator; `exempt`: why no preset makes it low."""
        row = type_hints.table_row(name)
        if row is None:
            return None
        if exempt is not None and row.label != "cast":
            return _ruled(name, Said("float32", f"{self._preset.name}: {exempt}"), "preset")
        choice = self._preset.choose(row)
        reason = UNSUPPORTED[name] if choice == "float32" and name in UNSUPPORTED else self._preset.why
        return _ruled(name, Said(choice, f"{self._preset.name}: {reason}"), "preset")


def _custom(name: str) -> Ruling | None:
    """The rule of the innermost `CustomTypeHint` block that names an operator."""
    row = type_hints.get_row(name)
    return Ruling(row, "custom hint") if row is not None and row.family == "CustomTypeHint" else None


def operator_rules(policy: Policy) -> type_hints.RuleTable:
    """What a policy makes of every operator of the tables, where no region, name or attribute says more."""
    decisions = Decisions(policy, Reading(tvm.IRModule()))
    rulings = [_custom(row.name) or decisions._of_operator(row.name) for row in type_hints.list_rules()]
    return type_hints.RuleTable(ruling.row for ruling in rulings if ruling is not None)


def _ruled(name: str, said: Said, level: str) -> Ruling | None:
    """The rule that makes what was said of an operator; its own where there is no precision to choose."""
    if said.choice == "low" and name in UNSUPPORTED and level in ("region", "name pattern"):  # which say it of many
        said = Said("float32", f"{said.why}; {UNSUPPORTED[name]}")
    row = type_hints.table_row(name)
    rule = rule_for(said.choice, row)
    if rule is not None:
        return Ruling(Row(name, rule, said.why, row.family if row is not None else "custom"), level)
    return Ruling(row, "rule") if row is not None else None
