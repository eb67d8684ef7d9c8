"""Which cases the whole suite leaves out: see thorough.toml."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest brings

#: Of each file, the cases of its test functions.
THOROUGH: dict[str, dict[str, list[str]]] = tomllib.loads(Path(__file__).with_name("thorough.toml").read_text())


def thorough_cases() -> set[str]:
    """The names of the cases, as pytest's."""
    return {
        f"{file}::{function}[{case}]"
        for file, functions in THOROUGH.items()
        for function, cases in functions.items()
        for case in cases
    }
