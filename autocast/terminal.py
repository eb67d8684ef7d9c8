"""What command lines share: what rich prints, as plain text for logs, files and `str`; and whole numbers as options."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

#: Columns of text where there is no terminal to ask.
TEXT_WIDTH = 140


def output() -> Console:
    """What a command prints on: as wide as the terminal or COLUMNS says, else as text is."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else TEXT_WIDTH
    return Console(width=width, emoji=False, markup=False)


def to_text(renderable: RenderableType, width: int = TEXT_WIDTH) -> str:
    """Plain text, without colours, `width` columns wide at most, in a notebook too; trailing blanks are removed."""
    from rich.console import Console  # not where nothing is shown: see `settings.table`

    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        emoji=False,
        markup=False,
    )
    console.print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def summary_of_places(modules: Sequence[str]) -> str:
    """Submodules in a few words: those that differ in their numbers only are one, with `*` for the numbers.

    >>> summary_of_places(["layer.0.query", "layer.1.query", "pooler"])
    'layer.*.query x2, pooler'
    """
    alike: dict[str, list[str]] = {}
    for module in modules:
        alike.setdefault(re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", module), []).append(module)
    names = {pattern if len(set(group)) > 1 else group[0]: len(group) for pattern, group in alike.items()}
    return ", ".join(f"{name} x{count}" if count > 1 else name for name, count in names.items())


def at_least(minimum: int) -> Callable[[str], int]:
    """The `type` of an option of argparse: a whole number that is not below `minimum`."""

    def whole_number(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of at least {minimum}")
        return int(text)

    return whole_number
