"""How many bad calls there are."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.doors.rows import rows_of


def test_at_least_three_hundred_bad_calls_are_tried_at_the_doors() -> None:
    files = sorted(Path(__file__).parent.glob("test_*.py"))
    modules = [import_module(f"tests.doors.{file.stem}") for file in files if file != Path(__file__)]
    names = [str(row) for module in modules for row in rows_of(module.ROWS)]
    assert len(names) == len(set(names)) >= 300
