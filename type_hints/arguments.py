"""Which arguments of an operator are tensors, and whether a rule of the tables names no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm

from type_hints.errors import CastingRuleError
from type_hints.helpers import TableRule
from type_hints.names import DERIVED_TENSORS

#: How TVM describes arguments that are numbers, sizes and the like; all others may be tensors.
_NO_TENSORS = ("DataType", "GenericConst", "Prim", "Shape", "StringImm")


def tensor_arguments(full_name: str) -> dict[int, str] | None:
    """The names of an operator's tensor arguments by their positions; None where only a call says what it takes."""
    if full_name in DERIVED_TENSORS:
        return dict(enumerate(DERIVED_TENSORS[full_name]))
    arguments = [(str(argument.name), str(argument.type_info)) for argument in tvm.ir.Op.get(full_name).arguments]
    if not arguments or "Array" in arguments[-1][1]:
        return None
    return {at: name for at, (name, type) in enumerate(arguments) if not type.startswith(_NO_TENSORS)}


def check_named_arguments(where: str, full_name: str, rule: Any, tensors: Mapping[int, str]) -> None:
    """Refuse a rule of the tables that names other arguments than `tensors`, such as `full(2)` for a gelu.

    Parameters
    ----------
    where
        How the message begins: who was given the rule.
    full_name, rule
        The operator, and the rule that it is given; a callable of another kind says nothing of arguments beforehand.
    tensors
        The names, or the types, of the operator's tensor arguments by position.

    Raises
    ------
    CastingRuleError
        The rule names an argument that is none of them.
    """
    if not isinstance(rule, TableRule) or rule.which | rule.kept <= tensors.keys():
        return
    listed = ", ".join(f"{position}: {name}" for position, name in tensors.items())
    takes = (
        f"takes {len(tensors)} tensor{'' if len(tensors) == 1 else 's'} ({listed})" if tensors else "takes no tensor"
    )
    fitting = TableRule(rule.label, rule.which & tensors.keys() or tensors) if tensors else "untouched()"
    positions = ", ".join(str(position) for position in sorted(rule.which | rule.kept))
    raise CastingRuleError(
        f"{where}: {rule!r} names the arguments {positions} (counted from 0), but {full_name} {takes}; try {fitting}"
    )
