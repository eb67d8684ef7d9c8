"""What the whole suite leaves out is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.thoroughness import THOROUGH, thorough_cases

_ROOT = Path(__file__).parent.parent


def test_tests_whose_cases_are_left_out_are_there():
    for file, functions in THOROUGH.items():
        text = (_ROOT / file).read_text()
        assert [name for name in functions if f"\ndef {name}(" not in text] == [], file


def test_the_whole_suite_leaves_them_out(request):
    config = request.config
    if config.getoption("thorough") or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        pytest.skip("this is not the whole suite, or it is with them")
    assert not {item.nodeid for item in request.session.items} & thorough_cases()
