"""What the benchmarks are built on: sides in processes of their own, and cases that are judged beside their peers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console

from autocast.policy import PRESETS
from benchmarks import coverage, presets, small_models
from benchmarks.harness import Case, Outcome, run
from benchmarks.sides import Build, Side, SideError


# Builders of the standard library: a side imports the module of what it is to build, and this one takes seconds.
def _sleeper(seconds: float) -> Build:
    return partial(partial, time.sleep, seconds)


_failing: Build = partial(int, "no such kernel")
_dying: Build = partial(os._exit, 1)


@pytest.fixture
def side() -> Iterator[Side]:
    """A side named `peer`, with one thread."""
    process = Side("peer", threads=1)
    yield process
    process.close()


def test_a_side_times_what_it_built_and_not_the_warmup(side: Side) -> None:
    side.build("nap", _sleeper(0.01))
    samples = side.time("nap", calls=3, warmup=2)
    assert len(samples) == 3
    assert min(samples) >= 10


def test_a_side_works_in_a_process_of_its_own(side: Side) -> None:
    assert side.compute(os.getpid) != os.getpid()
    assert side.compute(partial(os.getenv, "OMP_NUM_THREADS")) == "1"


def test_an_error_of_a_candidate_names_the_side_and_the_cause(side: Side) -> None:
    with pytest.raises(SideError, match=r"(?s)peer, 'broken' .*no such kernel"):
        side.build("broken", _failing)


def test_a_side_that_dies_is_an_error_and_not_a_hang(side: Side) -> None:
    with pytest.raises(SideError, match="peer: the process ended"):
        side.build("dead", _dying)


def _outcome(ours: float, **peers: float) -> Outcome:
    case = Case("case", _failing, {}, target=0.5, targets={"second": 0.9}, share=0.4)
    return Outcome(case, {"ours": [ours], **{name: [value] for name, value in peers.items()}}, limit=1.0)


def test_a_case_is_judged_beside_the_peer_that_is_hardest_to_beat() -> None:
    outcome = _outcome(2.0, first=4.1, second=3.0)
    assert (outcome.best_peer, outcome.target, outcome.met) == ("first", 0.5, True)
    assert _outcome(2.0, first=9.0, second=2.1).best_peer == "second"
    assert not _outcome(2.0, first=3.9, second=9.0).met


def test_a_share_of_the_roofline_is_a_target_too() -> None:
    assert not _outcome(3.0, first=9.0, second=9.0).met


def _naps(quick: bool) -> Iterator[Case]:
    peers = {"peer: long": _sleeper(0.02), "peer: compile": _failing}
    yield Case("nap", _sleeper(0.001), peers, target=0.5)
    if not quick:
        yield Case("never", _failing, {}, target=1.0)


def test_a_quick_run_measures_the_quick_cases_and_prints_who_won(capsys: pytest.CaptureFixture[str]) -> None:
    (outcome,) = run("naps", __doc__, _naps, ["--quick", "--threads", "1"])
    assert outcome.met
    assert outcome.best_peer == "peer: long"
    printed = capsys.readouterr().out
    assert "nap" in printed and "met" in printed and "roofline measured here" in printed
    assert "--quick left out: torch.compile" in printed


def test_presets_are_measured_on_the_same_model(capsys: pytest.CaptureFixture[str]) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
    figures = presets.measure(module, (torch.randn(2, 16),), rounds=1)
    assert list(figures) == list(PRESETS)
    assert figures["mp0"]["casts"] == 0 < figures["pure"]["casts"] < figures["mp4"]["casts"]
    assert figures["mp0"]["error"] < 1e-6 < 1e-4 < figures["mp4"]["error"] < 1e-2
    Console().print(presets.table("two layers", figures))
    assert "two layers" in capsys.readouterr().out


def test_the_page_counts_what_was_measured_of_coverage() -> None:
    page = (Path(__file__).parents[1] / "docs" / "models_in.md").read_text()
    assert coverage.table(coverage.counted()) in page


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("whisper", ["input_features", "decoder_input_ids"]),
        ("patchtst", ["past_values"]),
        ("mamba2", ["input_ids"]),
    ],
)
def test_an_architecture_is_made_small_and_takes_what_is_made_for_it(name: str, inputs: list[str]) -> None:
    module = next(small_models.small_models(name))()
    taken, _ = coverage._runs(module, small_models.inputs_of(module))
    assert list(taken) == inputs
    assert sum(parameter.numel() for parameter in module.parameters()) < 1_000_000
