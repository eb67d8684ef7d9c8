"""What a policy can make of an operator: a casting rule for each choice, made from the operator's own row.

The row says which arguments a precision concerns (never an index, a shape, or the mask of an attention), a choice
says which precision that is. Rules are shared by all operators that are alike, so the planner asks each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import type_hints
from type_hints import Argument, Hint, PrimType, Row, TableRule, TupleType, check_dtype, gen_hint_helper

#: low: arguments and result in the AMP dtype. float32: both in float32. widening: low arguments, float32 result.
#: narrowing: float32 arguments, low result. widest: the widest dtype among the arguments. leave: what the author
#: wrote. rule: what the tables say.
Choice = Literal["low", "float32", "widening", "narrowing", "widest", "leave", "rule"]

#: The precision of (arguments, result); None for a result that is what the operator makes of its arguments.
_PRECISIONS = {
    "low": ("low", None),
    "float32": ("float32", None),
    "widening": ("low", "float32"),
    "narrowing": ("float32", "low"),
}

#: Classes of rules that have nothing to decide.
UNDECIDED = frozenset(("untouched", "cast", "opaque"))


class Uniform(TableRule):
    """One precision for the arguments `which` (None: for every one), and perhaps another for the result."""

    __slots__ = ("arguments", "every", "result")

    def __init__(
        self, label: str, arguments: str, result: str | None, which: frozenset[int] | None, kept: frozenset[int]
    ) -> None:
        super().__init__(label, which or (), kept)
        self.arguments, self.result = arguments, result
        self.every = which is None

    def __call__(self, args: Sequence[Argument], ret_type: Any, amp_dtype: str) -> list[Hint]:
        """The hints, and one for the result where it has a precision of its own and is one tensor."""
        dtypes = {"low": amp_dtype, "float32": "float32"}
        hints: list[Hint] = []
        for index, argument in enumerate(args):
            dtype = None
            if index in self.kept:
                dtype = "float32"
            elif self.every or index in self.which:
                dtype = dtypes[self.arguments]
            hints.append(gen_hint_helper(argument.checked_type, dtype))
        if self.result is not None:
            result = gen_hint_helper(ret_type, dtypes[self.result])
            if not isinstance(result, TupleType) and result != PrimType(None):
                hints.append(result)
        return hints


class Widest(TableRule):
    """Low where every argument that it concerns is low already, else float32: it narrows nothing."""

    __slots__ = ()

    def __call__(self, args: Sequence[Argument], ret_type: Any, amp_dtype: str) -> list[Hint]:
        """The hints: the same precision for all arguments that the rule concerns."""
        concerned = [argument.checked_type for index, argument in enumerate(args) if index in self.which]
        chosen = amp_dtype if all(check_dtype(type, amp_dtype) for type in concerned) else "float32"
        return [
            gen_hint_helper(argument.checked_type, chosen if index in self.which else None)
            for index, argument in enumerate(args)
        ]


#: Every argument keeps the dtype that the author gave it.
LEAVE = TableRule("leave", ())


def rule_for(choice: Choice, row: Row | None) -> type_hints.Rule | None:
    """The rule that makes `choice` of the operator of `row`; of one without a row, all arguments are concerned.

    None where the operator's own row decides: the choice is "rule", or there is no precision to choose.
    """
    if choice == "leave":
        return LEAVE
    if choice == "rule" or (row is not None and row.label in UNDECIDED):
        return None
    rule = row.rule if row is not None else None
    if choice == "widest":
        return _widest(getattr(rule, "which", frozenset((0, 1))))
    stores_either = getattr(rule, "free_result", False)
    return _uniform(choice, getattr(rule, "which", None), getattr(rule, "kept", frozenset()), stores_either)


@cache
def _widest(which: frozenset[int]) -> Widest:
    return Widest("widest", which)


@cache
def _uniform(choice: str, which: frozenset[int] | None, kept: frozenset[int], stores_either: bool) -> Uniform:
    arguments, result = _PRECISIONS[choice]
    if stores_either and choice == "low":
        # Left to itself, the operator would store float32 wherever that is wanted.
        result = "low"
    return Uniform(choice, arguments, result, which, kept)
