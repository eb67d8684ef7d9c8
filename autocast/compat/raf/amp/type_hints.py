"""RAF's `raf.amp.type_hints`: what casting rules are made of, and their registration."""

from __future__ import annotations

from collections.abc import Callable

import type_hints
from autocast.compat.names import named
from type_hints import PrimType, Rule, TupleType, check_dtype, gen_hint_helper, generic_cast, infer_cast

__all__ = [
    "PrimType",
    "TupleType",
    "check_dtype",
    "gen_hint_helper",
    "generic_cast",
    "infer_cast",
    "register_op_cast_rule",
]


__getattr__ = named(__name__, __all__)


def register_op_cast_rule(
    op_name: str, cast_rule: Rule | None = None, level: int = 10
) -> Callable[[Rule], Rule] | None:
    """Give an operator another casting rule, for this process; reports say in which file and line.

    Parameters
    ----------
    op_name : str
        RAF's name or ours.
    cast_rule : callable, optional
        `rule(args, ret_type, amp_dtype)`; None: this returns a decorator of one.
    level : int
        Accepted as RAF accepts it: the rule that is registered last is the one that counts.
    """
    if cast_rule is None:

        def decorate(rule: Rule) -> Rule:
            type_hints.register_op_cast_rule(op_name, rule, override=True)
            return rule

        return decorate
    type_hints.register_op_cast_rule(op_name, cast_rule, override=True)
    return None
