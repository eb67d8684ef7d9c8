"""Every environment variable the project reads, in one typed table; `python -m autocast env` prints it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from autocast.errors import AutocastError

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Setting:
    """One environment variable: its name, what its text must be, what parses it, its default, and what it does."""

    name: str
    kind: str
    parse: Callable[[str], object]
    default: object
    help: str

    @property
    def value(self) -> object:
        """The variable's current value, or the default where it is unset or empty."""
        text = os.environ.get(self.name, "")
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise AutocastError(f"{self.name}={text!r}: expected {self.kind} ({self.help})") from None


class Debug(NamedTuple):
    """What AUTOCAST_DEBUG asks for."""

    level: int = 0
    poison: bool = False

    def __str__(self) -> str:
        return f"{self.level},poison" if self.poison else str(self.level)


def _parse_debug(text: str) -> Debug:
    levels = [word for word in text.split(",") if word.strip() != "poison"]
    (level,) = levels or ["0"]
    return Debug(int(level), len(levels) < len(text.split(",")))


def _one_of(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(text)
        return text

    return parse


#: What a compilation does where a model was never seen: compile it as it is known, or after measuring (all, or what was
#: not measured before), or answer at once and compile meanwhile.
FIND_MODES = ("fast", "normal", "hybrid", "dynamic_hybrid")

SETTINGS = (
    Setting(
        "AUTOCAST_CACHE",
        "on, off or readonly",
        _one_of("on", "off", "readonly"),
        "on",
        "whether what was compiled is kept on disk, and found there again",
    ),
    Setting(
        "AUTOCAST_CACHE_DIR",
        "path",
        str,
        "",
        "folder of the user's cache; empty: autocast in $XDG_CACHE_HOME, ~/.cache",
    ),
    Setting(
        "AUTOCAST_CACHE_SIZE", "int", int, 4096, "MiB that the user's cache may take; the least recently used goes"
    ),
    Setting(
        "AUTOCAST_DEBUG",
        "int, poison, or both with a comma",
        _parse_debug,
        Debug(),
        "1 passes, 2 cast decisions, 3 IR differences, 4 kernels; poison: memory is NaN before use, and guarded",
    ),
    Setting(
        "AUTOCAST_DUMP",
        "path",
        str,
        "",
        "directory for the IR after each phase of lowering, and for files that repeat a failure",
    ),
    Setting(
        "AUTOCAST_FIND_MODE",
        " or ".join(FIND_MODES),
        _one_of(*FIND_MODES),
        "fast",
        "how compile answers for a model that it never saw: fast compiles it, normal and hybrid measure before, "
        "dynamic_hybrid runs it at once",
    ),
    Setting("AUTOCAST_NUM_THREADS", "int", int, 0, "threads that run kernels and compile them; 0: one for each core"),
    Setting("AUTOCAST_SYSTEM_CACHE", "path", str, "", "folder of a cache that is shared, and only read"),
    Setting(
        "AUTOCAST_TARGET", "name", str, "", "LLVM CPU name to compile for, such as x86-64-v3; empty: this machine's"
    ),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def integer(name: str) -> int:
    """The current value of the whole-number setting `name`."""
    value = _BY_NAME[name].value
    assert isinstance(value, int)
    return value


def debug() -> Debug:
    """The current value of AUTOCAST_DEBUG."""
    value = _BY_NAME["AUTOCAST_DEBUG"].value
    assert isinstance(value, Debug)
    return value


def text(name: str) -> str:
    """The current value of the setting `name`, as text; empty where it is not set."""
    return str(_BY_NAME[name].value)


def table() -> Table:
    """Every environment variable that the project reads, with its value now."""
    from rich.table import Table  # not where nothing is shown: whoever runs a compiled model starts without it

    shown = Table(title="environment variables")
    for name in ("name", "type", "default", "now", "meaning"):
        shown.add_column(name, overflow="fold", no_wrap=name == "name")
    for setting in SETTINGS:
        shown.add_row(setting.name, setting.kind, str(setting.default), str(setting.value), setting.help)
    return shown
