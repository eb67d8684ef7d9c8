"""The errors of casting rules. Each message says where, what it got, what it expected and what to try."""

from __future__ import annotations


class CastingRuleError(Exception):
    """A casting rule is missing, contradicts itself, or answers something it may not answer."""


class UnknownOperatorError(CastingRuleError, KeyError):
    """A name that no operator has, or that several have."""

    def __str__(self) -> str:
        # KeyError would print the message's repr, with quotes and escaped line ends.
        return str(self.args[0])
