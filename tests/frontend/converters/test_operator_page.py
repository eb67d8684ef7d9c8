"""docs/torch_operators.md is what the tables of converters say."""

from __future__ import annotations

import re
from pathlib import Path

from autocast.frontend.__main__ import page
from autocast.frontend.converters.table import CONVERTERS, TRUSTED

PAGE = Path(__file__).resolve().parents[3] / "docs" / "torch_operators.md"


def test_the_page_is_the_one_that_the_tables_make():
    assert PAGE.read_text() == page(), "run: python -m autocast.frontend > docs/torch_operators.md"


def test_the_page_has_every_operator_that_can_be_imported_and_no_other():
    rows = re.findall(r"^\| `([\w:]+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    listed = [f"{operator}.{overload}" for operator, overloads in rows for overload in overloads.split(", ")]
    assert sorted(listed) == sorted([*CONVERTERS.keys() - {"getitem"}, *TRUSTED, "getitem.Python's own"])
