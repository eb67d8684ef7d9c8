"""Every environment variable the project reads, in one typed table; `python -m autocast env` prints it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from autocast.errors import AutocastError


@dataclass(frozen=True)
class Setting:
    """One environment variable: its name, the type its text is parsed to, its default, and what it does."""

    name: str
    type: type
    default: object
    help: str

    @property
    def value(self) -> object:
        """The variable's current value, or the default where it is unset or empty."""
        text = os.environ.get(self.name, "")
        if not text:
            return self.default
        try:
            return self.type(text)
        except ValueError:
            raise AutocastError(f"{self.name}={text!r}: expected {self.type.__name__} ({self.help})") from None


SETTINGS = (
    Setting("AUTOCAST_DEBUG", int, 0, "1 passes and their times, 2 cast decisions, 3 IR differences, 4 kernels"),
    Setting("AUTOCAST_DUMP", str, "", "directory that receives the IR after each phase of lowering"),
    Setting("AUTOCAST_NUM_THREADS", int, 0, "threads that run kernels and compile them; 0: one for each core"),
    Setting("AUTOCAST_TARGET", str, "", "LLVM CPU name to compile for, such as x86-64-v3; empty: this machine's"),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def integer(name: str) -> int:
    """The current value of the whole-number setting `name`."""
    value = _BY_NAME[name].value
    assert isinstance(value, int)
    return value


def text(name: str) -> str:
    """The current value of the setting `name`, as text; empty where it is not set."""
    return str(_BY_NAME[name].value)
