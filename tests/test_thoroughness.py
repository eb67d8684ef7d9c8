"""What the whole suite leaves out is there."""

from __future__ import annotations

from pathlib import Path

from tests.thoroughness import THOROUGH, thorough_cases

_ROOT = Path(__file__).parent.parent


def test_tests_whose_cases_are_left_out_are_there():
    for file, functions in THOROUGH.items():
        text = (_ROOT / file).read_text()
        assert [name for name in functions if f"\ndef {name}(" not in text] == [], file


def test_cases_that_were_asked_for_are_run(request):
    asked = request.config.args_source is not type(request.config).ArgsSource.TESTPATHS
    here = {item.nodeid for item in request.session.items} & thorough_cases()
    assert asked or request.config.getoption("thorough") or not here
