"""What command lines share: what rich prints, as plain text for logs, files and `str`; and whole numbers as options."""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable

from rich.console import Console, RenderableType

#: Columns of text where there is no terminal to ask.
TEXT_WIDTH = 140


def to_text(renderable: RenderableType, width: int = TEXT_WIDTH) -> str:
    """Plain text, without colours, `width` columns wide at most; trailing blanks are removed."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, force_terminal=False).print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def at_least(minimum: int) -> Callable[[str], int]:
    """The `type` of an option of argparse: a whole number that is not below `minimum`."""

    def whole_number(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of at least {minimum}")
        return int(text)

    return whole_number
