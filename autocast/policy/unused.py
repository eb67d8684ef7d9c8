"""Entries of policies and of `CustomTypeHint` that concern nothing in a module: most are misspelled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from autocast.errors import PolicyWarning
from autocast.messages import warn


class Unused(NamedTuple):
    """An entry that concerns nothing: who has it, what it should be, and what is nearest in the module."""

    field: str
    entry: str
    what: str
    nearest: str

    def __str__(self) -> str:
        return f"{self.field} has {self.entry!r}, and no {self.what} of the module is that; nearest: {self.nearest}"


def warn_of_unused(first: Iterable[Unused], *others: Iterable[Unused]) -> None:
    """Warn of the entries that concern nothing in any of some modules that are used together."""
    known = [{(unused.field, unused.entry) for unused in module} for module in others]
    for unused in first:
        if all((unused.field, unused.entry) in module for module in known):
            warn(str(unused), PolicyWarning)
