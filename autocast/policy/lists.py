"""What a policy's lists of operators say of a call."""

from __future__ import annotations

from typing import NamedTuple

from tvm import relax

import type_hints
from autocast.errors import PolicyError
from autocast.ir import op_name
from autocast.policy.choices import Choice
from autocast.policy.policy import MIXED_OPS, Policy


class Said(NamedTuple):
    """What one level makes of a call, and why."""

    choice: Choice
    why: str


class OperatorLists:
    """The lists of one policy; `name in lists` is whether any names that operator."""

    def __init__(self, policy: Policy) -> None:
        self._said = _operator_lists(policy)
        self._conditions = [
            (f"relax.{name}", attribute, values) for name, attribute, values in policy.conditional_float32_ops
        ]

    def __contains__(self, name: str | None) -> bool:
        return name in self._said

    def condition(self, name: str, operator: str, call: relax.Call) -> Said | None:
        """What `conditional_float32_ops` says of a call, by its attributes."""
        for listed, attribute, values in self._conditions:
            if listed in (name, operator):
                value = _attribute(call, attribute)
                if value in values:
                    return Said("float32", f"conditional_float32_ops: its {attribute} is {value}")
        return None

    def said(self, name: str, operator: str) -> Said | None:
        """What the operator lists say, which look at nothing but the operator."""
        said = self._said.get(name) or self._said.get(operator)
        if said is not None and said.choice == "widest" and name != operator and name not in self._said:
            return None  # the add of a bias is no meeting of equals: it takes the precision of its data
        return said


def _operator_lists(policy: Policy) -> dict[str, Said]:
    """What the lists make of each operator that they name, by its full name."""
    lists: dict[str, Said] = {}
    choice: Choice
    choices: dict[str, Choice] = {"low_ops": "low", "widest_ops": "widest"}
    for field in ("low_ops", "float32_ops", "unsupported_ops", "widest_ops"):
        choice = choices.get(field, "float32")
        for name in getattr(policy, field):
            lists[type_hints.normalize_op_name(name)] = Said(choice, f"{field} names it")
    for kind in policy.mixed_ops:
        choice = "widening" if kind == "gemm" else "narrowing"
        for row in type_hints.list_rules():
            if MIXED_OPS[kind](row):
                lists[row.name] = Said(choice, f"mixed_ops={kind!r}")
    return lists


def _attribute(call: relax.Call, attribute: str) -> str:
    known = [field.name for field in type(call.attrs).__tvm_ffi_type_info__.fields] if call.attrs is not None else []
    if attribute not in known:
        raise PolicyError(
            f"Policy: conditional_float32_ops asks for the attribute {attribute!r} of {op_name(call)}; it has "
            f"{', '.join(known) or 'none'}"
        )
    return str(getattr(call.attrs, attribute))
