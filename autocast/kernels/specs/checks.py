"""What specs check about their own fields."""

from __future__ import annotations

from autocast.errors import UnsupportedError

#: How operands and results of products may be stored.
STORAGE_DTYPES = ("float32", "bfloat16", "float16")


def check_one_of(where: str, got: object, legal: tuple) -> None:
    """Raise an UnsupportedError where a field of a spec is none of its legal values."""
    if got not in legal:
        raise UnsupportedError(f"{where}: got {got!r}, expected one of {', '.join(map(str, legal))}")
