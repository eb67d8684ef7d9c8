"""A few random programs of each kind: `python -m tests.programs` runs as many as you like."""

from __future__ import annotations

import pytest

from tests.programs.check import SEARCH, WAYS, check
from tests.programs.generate import Program, generate
from tests.programs.outcome import Outcome
from tests.programs.shrink import shrunk


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(3))
def test_what_comes_of_a_program_is_what_comes_of_it_by_torch(seed: int, way: str) -> None:
    program = generate(seed, gradients=not way.startswith("imported"))
    outcome = check(program, way)
    assert not outcome.is_bad, f"{outcome.why}\n{program.text}"


def test_a_program_that_fails_is_made_smaller() -> None:
    program = Program(("t1 = x + 1", "t2 = y.sin()", "t1.mul_(2)", "t3 = t1.flip(0)"), ("t2", "t3"))
    small = shrunk(program, lambda part: ".flip" in part.text and "t3" in part.results)
    assert small == Program(("t3 = t1.flip(0)",), ("t3",))


def test_a_mistake_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(("t1 = x * 2",), ("t1",))
    assert [check(program, way).kind for way in WAYS] == ["right"] * 6
    monkeypatch.setattr("tests.programs.check._difference", lambda got, expected: "off")
    assert check(program, "imported").is_bad
    assert check(program, "compiled").kind == "torch's"


def test_what_is_left_of_a_program_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(("t1 = x + 1", "t2 = y.sin()", "t3 = t1.flip(0)"), ("t2", "t3"))
    monkeypatch.setattr(SEARCH, "_check", lambda part, way: Outcome("wrong" if ".flip" in part.text else "right"))
    small = SEARCH.smallest(program, "imported", Outcome("wrong"))
    assert small == Program(("t1 = x + 1", "t3 = t1.flip(0)"), ("t3",))
