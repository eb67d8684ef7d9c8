"""Random modules, as they are and after AutoCast, give in torch what the interpreter gives.

`python -m tests.fuzz --target torch --count 20000` runs more of them.
"""

from __future__ import annotations

import pytest

from tests.fuzz.check import Outcome
from tests.fuzz.generator import generate
from tests.fuzz.run import outcome

#: Nothing is compiled: a module takes some 30 ms.
_MODULES, _IN_TEST = 120, 12
#: Where torch and the interpreter once differed, or the module could not be run.
_ONCE_WRONG = (7, 265, 286, 519, 855, 1142, 1947, 2700)


def _outcomes(seed: int) -> list[Outcome]:
    """What comes of a seed's module as it is and after AutoCast."""
    case = generate(seed)
    found = [outcome(case, amp, "torch") for amp in dict.fromkeys((None, case.amp))]
    for each in found:
        assert not each.bad, f"python -m tests.fuzz --target torch --one {seed}: {each.kind} {each.stage} {each.detail}"
    return found


@pytest.mark.parametrize("first", range(0, _MODULES, _IN_TEST))
def test_random_modules_give_in_torch_what_the_interpreter_gives(first: int) -> None:
    found = [_outcomes(seed)[-1] for seed in range(first, first + _IN_TEST)]
    assert sum(each.compared for each in found)
    assert sum(each.kind == "right" for each in found) >= _IN_TEST // 2


@pytest.mark.parametrize("seed", _ONCE_WRONG)
def test_modules_that_once_differed_agree(seed: int) -> None:
    assert {each.kind for each in _outcomes(seed)} == {"right"}
