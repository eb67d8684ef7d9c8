"""Random modules, compiled as they are and after AutoCast, give what the interpreter gives.

`python -m tests.fuzz --count 20000` runs more of them, shrinks what fails, and writes it to files.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fuzz.generator import generate
from tests.fuzz.run import outcome

#: A module takes a third of a second, most of it LLVM's: in all, half a minute of one core.
_MODULES, _IN_TEST = 96, 12


@pytest.mark.parametrize("first", range(0, _MODULES, _IN_TEST))
def test_random_modules_give_what_the_interpreter_gives(first: int) -> None:
    compared = 0
    for seed in range(first, first + _IN_TEST):
        case = generate(seed)
        found = outcome(case, case.amp if seed % 2 else None)
        assert not found.bad, f"python -m tests.fuzz --one {seed}: {found.kind} {found.stage} {found.detail}"
        compared += found.compared
    assert compared


def test_a_seed_always_makes_the_same_module() -> None:
    assert generate(7).text == generate(7).text != generate(8).text
    assert all((a == b).all() for a, b in zip(generate(7).values(), generate(7).values(), strict=True))


@pytest.mark.parametrize("option", ["--count=-3", "--jobs=0"])
def test_a_run_of_no_modules_is_an_error(option: str) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.fuzz", option], capture_output=True, text=True)
    assert done.returncode == 2
    assert "expected a whole number of at least 1" in done.stderr
