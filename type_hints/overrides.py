"""`CustomTypeHint`: other casting rules for the duration of a `with` block."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from type_hints.arguments import check_named_arguments, tensor_arguments
from type_hints.errors import CastingRuleError
from type_hints.hints import Rule
from type_hints.names import normalize_op_name


class CustomTypeHint:
    """Override casting rules inside a `with` block, or inside a decorated function.

    Blocks nest; the innermost block that names an operator decides it. Leaving a block, by an exception
    too, restores what was there before. A block is seen by the thread or asyncio task that entered it (and
    by tasks created inside it), never by others; one object may be entered many times and by many threads.

    Parameters
    ----------
    rules
        Operator name to rule. `relax.nn.softmax`, `nn.softmax`, `softmax`, `autocast.op.softmax` and
        `raf.op.softmax` mean the same operator.

    Raises
    ------
    UnknownOperatorError
        A name that no operator has, or several have.
    CastingRuleError
        A rule that is not callable or names arguments that the operator lacks, or two names that mean one operator.

    Examples
    --------
    >>> with CustomTypeHint({"nn.softmax": follow(1)}):
    ...     amp_model = autocast(model)
    """

    __slots__ = ("rules",)

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        if not isinstance(rules, Mapping):
            raise CastingRuleError(
                f"CustomTypeHint: got {type(rules).__name__}, expected a mapping from operator names to rules, "
                'such as {"relax.nn.softmax": type_hints.follow(1)}'
            )
        full_names: dict[str, Rule] = {}
        for name, rule in rules.items():
            full_name = normalize_op_name(name)
            if not _takes_three(rule):
                raise CastingRuleError(
                    f"CustomTypeHint: the rule of {name!r} is {rule!r}, expected a callable "
                    "rule(args, ret_type, amp_dtype) -> list of hints; try type_hints.full(1)"
                )
            if full_name in full_names:
                raise CastingRuleError(
                    f"CustomTypeHint: {full_name} is named twice, the second time as {name!r}; expected one rule "
                    "for each operator"
                )
            tensors = tensor_arguments(full_name)
            if tensors is not None:
                check_named_arguments("CustomTypeHint", full_name, rule, tensors)
            full_names[full_name] = rule
        self.rules: Mapping[str, Rule] = MappingProxyType(full_names)

    def __enter__(self) -> CustomTypeHint:
        _active.set((*_active.get(), self))
        return self

    def __exit__(self, *exception: object) -> None:
        # By identity and not by popping: a suspended generator may leave its blocks out of order.
        active = _active.get()
        last = max((index for index, block in enumerate(active) if block is self), default=None)
        if last is not None:
            _active.set(active[:last] + active[last + 1 :])

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function or coroutine function so that its body runs inside the block."""
        if not callable(function):
            raise CastingRuleError(
                f"CustomTypeHint: got a {type(function).__name__} to decorate, expected a function; to override rules "
                "for some lines, write `with CustomTypeHint(...):`"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise CastingRuleError(
                f"CustomTypeHint cannot decorate the generator {function.__name__}: its body runs after the call "
                "returns; use `with CustomTypeHint(...)` inside it"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_coroutine(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

            return run_coroutine

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return run

    def __repr__(self) -> str:
        return f"CustomTypeHint({dict(self.rules)!r})"


def _takes_three(rule: Any) -> bool:
    """Whether `rule` can be called as casting rules are; a class, or `low` without its number, cannot."""
    if isinstance(rule, type) or not callable(rule):
        return False
    try:
        inspect.signature(rule).bind((), None, "")
    except TypeError:
        return False
    except ValueError:  # a function of C that does not say what it takes
        return True
    return True


_active: ContextVar[tuple[CustomTypeHint, ...]] = ContextVar("type_hints_active", default=())


def active_names() -> frozenset[str]:
    """The full names of all operators that the active blocks name."""
    return frozenset(name for block in _active.get() for name in block.rules)


def active_rule(full_name: str) -> Rule | None:
    """The rule that the innermost active block gives an operator; None where no block names it."""
    for block in reversed(_active.get()):
        rule = block.rules.get(full_name)
        if rule is not None:
            return rule
    return None
