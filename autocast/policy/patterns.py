"""Names selected by pattern: `layer.0.weight` (exact), `layer.*` (glob) or `/layer\\.[0-3]\\..*/` (regular)."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import NamedTuple

from autocast.errors import PolicyError


def compiled(pattern: str) -> re.Pattern[str]:
    """The regular expression that a pattern means; all kinds match a whole name.

    Raises
    ------
    PolicyError
        What stands between slashes is no regular expression.
    """
    if len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/"):
        try:
            return re.compile(pattern[1:-1])
        except re.error as error:
            raise PolicyError(
                f"Policy: {pattern!r} is not a regular expression: {error}; without the slashes it is a glob"
            ) from error
    return re.compile(re.escape(pattern) if not set("*?[") & set(pattern) else fnmatch.translate(pattern))


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
