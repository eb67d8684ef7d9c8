"""A table of bad calls: what each is, and how it is answered."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

#: (where, error) -> a name for each call -> the call, and a regular expression of what the message says it got.
Rows = Mapping[tuple[str, type[Exception]], Mapping[str, tuple[Callable[[], Any], str]]]

#: What no user should be shown: TVM's operators as they are kept, its checks and traces.
_FROM_INSIDE = re.compile(r"ir\.Op\(span|Traceback|Check failed")


class Row(NamedTuple):
    """One bad call."""

    where: str
    error: type[Exception]
    name: str
    call: Callable[[], Any]
    says: str

    def check(self) -> None:
        """Fail unless the call raises an error of this class, whose message begins with where, and says what."""
        with pytest.raises(self.error) as raised, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of tensors that are made to be refused
            self.call()
        message = " ".join(str(raised.value).split())
        assert type(raised.value) is self.error, raised.value
        assert message.startswith(self.where), message
        assert re.search(self.says, message), message
        assert not _FROM_INSIDE.search(message), message

    def __str__(self) -> str:
        return f"{self.where}: {self.name}"


def rows_of(table: Rows) -> list[Row]:
    """The rows of a table."""
    return [Row(*key, name, *row) for key, calls in table.items() for name, row in calls.items()]
