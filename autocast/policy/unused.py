"""Entries of policies and of `CustomTypeHint` that concern nothing in a module: most are misspelled."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from autocast.errors import PolicyWarning
from autocast.messages import warn

#: Operators that other operators have inside: what is said of the one concerns only calls of its own.
_INSIDE = dict.fromkeys(("matmul", "nn.softmax"), ("nn.attention", "nn.attention_bias", "nn.attention_var_len"))


def holder(entry: str, operators: Collection[str]) -> str:
    """The operator of a module that has `entry` inside, for a message; empty where none has."""
    found = [name for name in _INSIDE.get(entry, ()) if name in operators]
    return f"{found[0]}, which computes {entry} inside in float32, and takes rules as a whole" if found else ""


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
