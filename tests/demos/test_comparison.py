"""Ways are measured in turns, and what their latencies cannot tell is said."""

from __future__ import annotations

import time
from dataclasses import replace

from autocast.demos import comparison as measuring
from autocast.demos.comparison import Row, comparison, measure
from autocast.terminal import to_text


def test_rounds_alternate_and_the_first_is_not_counted():
    order = []

    def way(name, seconds):
        def call():
            order.append(name)
            time.sleep(seconds)

        return call

    fast, slow = measure([way("fast", 0.001), way("slow", 0.02)], rounds=3)
    assert order == ["fast", "slow"] * 4
    assert len(fast.latencies) == len(slow.latencies) == 3
    assert max(fast.latencies) < 20 <= min(slow.latencies)


def test_a_way_that_takes_too_long_is_not_called_again_and_its_result_not_compared(monkeypatch):
    monkeypatch.setattr(measuring, "_PATIENCE", 0.05)
    ways = [iter(range(9)).__next__, lambda: time.sleep(0.03) or "late", lambda: time.sleep(0.06) or "never"]
    fast, slow, slowest = measure(ways, rounds=5)
    assert len(measure(ways[1:], rounds=5)[1].latencies) == 5, "as slow as the first"
    assert (len(fast.latencies), fast.result) == (5, 1)
    assert (len(slow.latencies), slow.result) == (1, "late")
    assert (len(slowest.latencies), slowest.result) == (1, None)
    torch = replace(row("torch", 60.0), error=None)
    shown = to_text(comparison("title", "caption", (row("ours", *fast.latencies),) * 3 + (torch,)))
    assert "torch: 1 of 5 rounds, since they took over 0 s" in shown


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
