"""Ways are measured in turns, and what their latencies cannot tell is said."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from autocast.demos import comparison as measuring
from autocast.demos.comparison import Row, comparison, measure
from autocast.terminal import to_text


@pytest.fixture
def taking(monkeypatch):
    """A way that takes so many seconds of a clock that nothing else moves, and returns which of its calls it is."""
    now = [0.0]
    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: now[0], sleep=lambda seconds: None))

    def way(seconds):
        calls = itertools.count()

        def call():
            now[0] += seconds
            return next(calls)

        return call

    return way


def test_rounds_alternate_and_the_first_is_not_counted(taking):
    order = []
    ways = {"a": taking(1), "b": taking(2)}
    named = [lambda name=name: order.append(name) or ways[name]() for name in ways]
    fast, slow = measure(named, rounds=3)
    assert order == ["a", "b"] * 4
    assert (fast.latencies, slow.latencies) == ([1000.0] * 3, [2000.0] * 3)
    assert (fast.result, slow.result) == (1, 1)


def test_a_way_that_takes_too_long_is_not_called_again_and_its_result_not_compared(taking):
    fast, slow, slowest = measure([taking(0.5), taking(16), taking(40)], rounds=5, compared=1)
    assert (len(fast.latencies), fast.result) == (5, 1)
    assert (len(slow.latencies), slow.result) == (1, 1)
    assert (slowest.latencies, slowest.result) == ([40_000.0], None)
    ours, torch = row("ours", *fast.latencies), replace(row("torch", *slowest.latencies), error=None)
    shown = to_text(comparison("title", "caption", (ours, ours, ours, torch)))
    assert "torch: 1 of 5 rounds, since they took over 30 s" in shown


def test_a_way_may_take_as_long_as_ours(taking):
    assert [len(run.latencies) for run in measure([taking(40), taking(300)], rounds=5)] == [5, 5]


def row(name: str, *latencies: float) -> Row:
    return Row(name, latencies, error=0.0)


def test_the_minimum_and_the_spread_stand_beside_the_median():
    ours = row("ours", 10.0, 10.5, 9.5, 10.2, 9.8)
    shown = to_text(comparison("title", "caption", (ours, ours, row("torch", 20.0, 20.0, 20.0), ours)))
    assert [cell.strip() for cell in shown.splitlines()[4].split("│")[2:6]] == ["10.0", "9.5", "4%", "2.00 x"]
    assert "?" not in shown


def test_speedups_over_latencies_that_spread_are_marked_and_explained():
    ours, restless = row("ours", 10.0, 10.0, 10.0), row("torch", 10.0, 20.0, 60.0)
    shown = to_text(comparison("title", "caption", (ours, ours, restless, ours)))
    assert [line.split("│")[5].strip() for line in shown.splitlines()[4:8]] == ["2.00 ?", "2.00 ?", "1.00 ?", "2.00 ?"]
    assert "?: half of the latencies of torch spread over more than 25%" in shown
