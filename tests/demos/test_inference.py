"""The first demonstration, on a BERT small enough for a test."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from autocast.demos import bert, inference
from autocast.terminal import to_text
from tests.demos.demonstrations import TINY, check_measured, check_shown


@pytest.fixture(scope="module")
def result():
    steps = []

    @contextmanager
    def progress(text):
        steps.append(text)
        yield

    result = inference.run(TINY, progress)
    assert [step.split()[0] for step in steps] == [
        "importing",
        "autocasting",
        "compiling",
        "compiling",
        "computing",
        "measuring",
    ]
    return result


def test_the_four_ways_are_measured_as_often_as_asked(result):
    check_measured(result.rows)


def test_float32_is_as_exact_as_torch_and_amp_as_torch_autocast(result):
    float32, low, eager, eager_low = result.rows
    assert float32.error < 1e-5
    assert eager.error < 1e-5
    assert 1e-4 < low.error <= eager_low.error
    assert inference.failures(result) == []


def test_memory_and_casts_are_those_of_the_models(result):
    float32, low, eager, eager_low = result.rows
    # What only parameters decide is computed once, so no more of them is held than the model has.
    assert float32.intermediates < float32.memory <= float32.intermediates + result.parameters + 0.1
    assert float32.casts == eager.casts == 0
    assert low.casts == result.amp.report.casts <= low.greedy_casts == result.amp.report.greedy_casts
    assert eager_low.casts > 0
    assert eager.memory is None


def test_the_table_shows_all_rows(result):
    text = to_text(result.table())
    check_shown(text, result.rows)
    assert f"{result.parameters:.2f} MiB of parameters" in text


def test_wrong_outputs_are_reported(result):
    float32, low, eager, eager_low = result.rows
    wrong = replace(result, rows=(replace(float32, error=float("nan")), replace(low, error=1.0), eager, eager_low))
    assert [failure.split()[3] for failure in inference.failures(wrong)] == ["float32", "AMP"]
    unknown = replace(result, rows=(float32, replace(low, error=None), eager, replace(eager_low, error=None)))
    assert [failure.split()[3] for failure in inference.failures(unknown)] == ["AMP"]


def test_the_model_of_the_demonstration_is_bert_base():
    size = sum(parameter.nbytes for parameter in bert.build_bert(bert.Options()).parameters()) / 2**20
    assert size == pytest.approx(120.34, abs=0.01)


def test_eager_casts_are_counted_with_their_bytes():
    x = torch.ones(4, 4)
    counter = inference.CastCounter(lambda: (x.to(torch.bfloat16), x.to(torch.float32), x.double()))
    assert (counter.casts, counter.bytes) == (2, 16 * (4 + 2) + 16 * (4 + 8))
