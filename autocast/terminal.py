"""What is printed by rich, as plain text: for logs, files and `str`."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

#: Columns of text where there is no terminal to ask.
TEXT_WIDTH = 140


def to_text(renderable: RenderableType, width: int = TEXT_WIDTH) -> str:
    """Plain text, without colours, `width` columns wide at most; trailing blanks are removed."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, force_terminal=False).print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
