"""The second demonstration, on a BERT small enough for a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autocast.demos import training
from autocast.terminal import to_text
from tests.demos.demonstrations import TINY, check_measured, check_shown


@pytest.fixture(scope="module")
def result():
    return training.run(TINY)


def test_the_four_ways_are_measured_as_often_as_asked(result):
    check_measured(result.rows)


def test_losses_after_updates_are_torchs(result):
    float32, low, eager, _ = result.rows
    assert float32.error < 1e-5
    assert eager.error < 1e-5
    assert low.error < 1e-3
    assert training.failures(result) == []


def test_memory_and_casts_are_those_of_the_steps(result):
    float32, low, eager, eager_low = result.rows
    assert float32.intermediates < float32.memory
    assert float32.casts == 0
    assert 0 < low.casts == result.amp.report.casts <= low.greedy_casts
    assert eager.memory is None
    assert eager_low.casts is None, "not counted"


def test_the_table_shows_all_rows(result):
    text = to_text(result.table())
    check_shown(text, result.rows)


def test_wrong_losses_are_reported(result):
    float32, low, eager, eager_low = result.rows
    wrong = replace(result, rows=(replace(float32, error=float("nan")), replace(low, error=1.0), eager, eager_low))
    assert len(training.failures(wrong)) == 2
