"""Learning rates by step."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autocast.errors import TrainingError
from autocast.training.schedules import Constant, Cosine, InverseSquareRoot, Linear

SCHEDULES = [
    Constant(2.0, warmup=4),
    InverseSquareRoot(2.0, warmup=4),
    Linear(2.0, warmup=4, steps=12, floor=0.5),
    Cosine(2.0, warmup=4, steps=12, floor=0.5),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_the_warmup_rises_in_a_straight_line_to_the_peak(schedule):
    assert [schedule(step) for step in range(5)] == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@given(step=st.integers(4, 10_000))
def test_it_never_rises_again(schedule, step):
    assert schedule(step + 1) <= schedule(step) <= 2.0


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        (Constant(0.1), 0, 0.1),
        (InverseSquareRoot(1.0, warmup=4), 16, 0.5),
        (Linear(2.0, steps=10), 5, 1.0),
        (Linear(2.0, steps=10, floor=0.2), 99, 0.2),
        (Cosine(2.0, steps=10), 5, 1.0),
        (Cosine(2.0, steps=12), 3, 1 + math.cos(math.pi / 4)),
        (Cosine(2.0, steps=10, floor=0.2), 99, 0.2),
    ],
    ids=repr,
)
def test_it_decays_as_its_formula_says(schedule, step, expected):
    assert schedule(step) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Constant(0.1, warmup=-1), "Constant: warmup is -1, expected a whole number of steps, 0 or more"),
        (
            lambda: Linear(0.1, warmup=10, steps=10),
            "expected steps above warmup, a peak above 0, and a floor",
        ),
        (lambda: Cosine(0.1, steps=10, floor=0.2), r"Try Cosine\(peak=1e-3, warmup=100, steps=10_000\)"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(build, message):
    with pytest.raises(TrainingError, match=message):
        build()
