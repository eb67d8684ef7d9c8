"""Names selected by pattern: `layer.0.weight` (exact), `layer.*` (glob) or `/layer\\.[0-3]\\..*/` (regular)."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from autocast.errors import PolicyError
from autocast.messages import check_kind

#: Python's own reader of expressions, whose name is private since 3.11.
_parser: Any = getattr(re, "_parser", None) or getattr(re, "sre_parse")  # noqa: B009


def compiled(pattern: str) -> re.Pattern[str]:
    """The regular expression that a pattern means; all kinds match a whole name.

    Raises
    ------
    PolicyError
        What stands between slashes is no regular expression.
    """
    check_kind("Policy: a pattern", pattern, str, PolicyError, "a text: an exact name, a glob, or '/regex/'")
    if len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/"):
        try:
            expression = re.compile(pattern[1:-1])
        except (re.error, RecursionError, OverflowError) as error:
            raise PolicyError(
                f"Policy: {pattern!r} is not a regular expression: {error}; without the slashes it is a glob"
            ) from error
        if _is_endless(_parser.parse(pattern[1:-1])):
            raise PolicyError(
                f"Policy: {pattern!r} repeats what is a repetition already, which takes time that doubles with each "
                "letter of a name; expected one repetition for each part, as '/layer(\\.\\d+)*/' has"
            )
        return expression
    return re.compile(re.escape(pattern) if not set("*?[") & set(pattern) else fnmatch.translate(pattern))


def _is_endless(parts: Any, repeated: bool = False) -> bool:
    """Whether a parsed expression repeats a repetition, beside nothing that takes a letter: `(a*)*`, `(\\w+\\s?)*`.

    A name can be split among the two in as many ways as it has subsets of letters, and all are tried.
    """
    shortest, _ = parts.getwidth()
    for operator, argument in parts:
        if operator in (_parser.MAX_REPEAT, _parser.MIN_REPEAT):
            least, most, group = argument
            endless = most is _parser.MAXREPEAT
            if endless and repeated and shortest == least * group.getwidth()[0]:
                return True
            groups, repeats = [group], endless
        elif operator is _parser.SUBPATTERN:
            groups, repeats = [argument[-1]], repeated
        elif operator is _parser.BRANCH:
            groups, repeats = argument[1], repeated
        else:
            continue
        if any(_is_endless(group, repeats) for group in groups):
            return True
    return False


class Match(NamedTuple):
    """What selected a name: the pattern, and the name that it matched."""

    pattern: str
    name: str


class Patterns:
    """Several patterns; the first that matches a name is the one that selects it."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._compiled = [(pattern, compiled(pattern)) for pattern in patterns]

    def __bool__(self) -> bool:
        return bool(self._compiled)

    def first(self, names: Iterable[str]) -> Match | None:
        """The first match among `names`, None where there is none."""
        for pattern, expression in self._compiled:
            for name in names:
                if expression.fullmatch(name):
                    return Match(pattern, name)
        return None

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """The patterns that match none of `names`."""
        known = list(names)
        return [
            pattern for pattern, expression in self._compiled if not any(expression.fullmatch(name) for name in known)
        ]


def with_parents(path: str) -> list[str]:
    """A dotted path and all that contain it: `a.b.c`, `a.b`, `a`. A pattern that selects a module selects its parts."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
