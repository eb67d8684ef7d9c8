"""Measure cases beside their peers: alternating, one process a side, medians, ratios, and our share of the roofline.

A benchmark is a table of `Case`s and one line::

    if __name__ == "__main__":
        run("softmax", __doc__, cases)

`cases(quick)` yields them. `--quick` asks for fewer, measures shorter, and leaves out `torch.compile`; `--only TEXT`
takes some by their names and leaves the other cases of an earlier run in the JSON.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import roofline
from benchmarks.sides import Build, Side
from benchmarks.timing import load, save

#: Rest before each candidate, seconds: longer than the thread pools spin after their last job.
PAUSE = 0.1

#: The name of our side.
OURS = "ours"


@dataclass(frozen=True)
class Case:
    """One thing that is computed, by us and by others.

    Attributes
    ----------
    name
        What the table shows, and the key in the JSON.
    ours
        Builds our call.
    peers
        Builds the peers' calls. A name before a colon is the process: "torch: compile" and "torch: eager" share one,
        "onnxruntime" has its own.
    target
        Our time is to be at most this, times the best peer's.
    targets
        Where it differs: the same for the peers of one process.
    dtype
        Of the operands that are multiplied: which peak the roofline takes.
    flops, bytes
        Multiplications and additions, and the bytes that have to pass through memory (0 where all of it stays in a
        cache).
    share
        The part of the roofline that is to be reached; None: no target.
    """

    name: str
    ours: Build
    peers: Mapping[str, Build]
    target: float
    dtype: str = "float32"
    flops: float = 0.0
    bytes: float = 0.0
    share: float | None = None
    targets: Mapping[str, float] = field(default_factory=dict)

    def target_beside(self, peer: str) -> float:
        """What part of the time of `peer` we may take."""
        return self.targets.get(process_of(peer), self.target)


def process_of(candidate: str) -> str:
    """The process that a candidate runs in."""
    return candidate.partition(":")[0]


@dataclass(frozen=True)
class Outcome:
    """What was measured of one case: every sample, ms, by candidate."""

    case: Case
    samples: Mapping[str, list[float]] = field(repr=False)
    limit: float

    @property
    def medians(self) -> dict[str, float]:
        """The median of each candidate, ms."""
        return {name: statistics.median(values) for name, values in self.samples.items()}

    @property
    def best_peer(self) -> str:
        """The peer that is the hardest to beat: the smallest median, times what part of it is our target."""
        peers = (name for name in self.samples if name != OURS)
        return min(peers, key=lambda name: self.medians[name] * self.case.target_beside(name))

    @property
    def ratio(self) -> float:
        """Our median over that of the best peer."""
        return self.medians[OURS] / self.medians[self.best_peer]

    @property
    def target(self) -> float:
        """The largest ratio that is good enough."""
        return self.case.target_beside(self.best_peer)

    @property
    def share(self) -> float:
        """The roofline's least time over our median."""
        return self.limit / self.medians[OURS]

    @property
    def met(self) -> bool:
        """Whether every target of the case was reached."""
        return self.ratio <= self.target and (self.case.share is None or self.share >= self.case.share)

    def figures(self) -> dict[str, object]:
        """What the JSON holds."""
        return {
            "milliseconds": {name: [round(value, 4) for value in values] for name, values in self.samples.items()},
            "median": {name: round(value, 4) for name, value in self.medians.items()},
            "best peer": self.best_peer,
            "ratio": round(self.ratio, 3),
            "target": self.target,
            "least by roofline": round(self.limit, 4),
            "share of roofline": round(self.share, 3),
            "target share": self.case.share,
            "met": self.met,
        }


def run(
    name: str,
    description: str | None,
    cases: Callable[[bool], Iterable[Case]],
    arguments: list[str] | None = None,
    *,
    calls: int = 4,
) -> list[Outcome]:
    """Measure `cases(quick)` as the command line says, print the table, write `benchmarks/results/NAME.json`.

    The file is written after each case and keeps the others that it holds, so that a killed run loses one case.

    Parameters
    ----------
    calls : int
        Timed calls of a candidate in one round; 20 calls in all, 9 with `--quick`.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases and fewer calls")
    parser.add_argument("--only", default="", help="only cases whose name holds this text")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of each side")
    options = parser.parse_args(arguments)
    chosen = [case for case in cases(options.quick) if options.only in case.name]
    if options.quick:
        chosen = [replace(case, peers=_without_compilers(case.peers)) for case in chosen]
    rounds = 3 if options.quick else -(-20 // calls)
    limits = _limits(options.threads)
    console = Console(width=140)
    outcomes: list[Outcome] = []
    sides: dict[str, Side] = {}
    file = name if options.threads == len(os.sched_getaffinity(0)) else f"{name}_{options.threads}_thread"
    try:
        for case in track(chosen, description=name, console=console, transient=True):
            outcomes.append(_measured(case, sides, options.threads, limits, rounds, calls))
            if not options.quick:
                _save(file, outcomes[-1], options.threads, limits)
    finally:
        for side in sides.values():
            side.close()
    console.print(_table(name, outcomes, options.threads))
    peaks = ", ".join(f"{dtype} {rate:.0f} GFLOP/s" for dtype, rate in limits.gflops.items())
    console.print(f"roofline measured here: {peaks}, copy {limits.bandwidth:.1f} GB/s")
    if options.quick:
        console.print(f"--quick left out: torch.compile, all other cases, {-(-20 // calls) - rounds} rounds, the JSON")
    else:
        console.print(f"in benchmarks/results/{file}.json")
    return outcomes


def _save(file: str, outcome: Outcome, threads: int, limits: roofline.Roofline) -> None:
    """Put one outcome beside those that `benchmarks/results/FILE.json` holds."""
    earlier = {key: value for key, value in load(file).items() if key != "machine"}
    cases = earlier.get("cases", {}) | {outcome.case.name: outcome.figures()}
    save(file, earlier | {"threads": threads, "roofline": vars(limits), "cases": cases})


def _without_compilers(peers: Mapping[str, Build]) -> dict[str, Build]:
    """The peers that are ready at once: `torch.compile` takes seconds for an operator, and a minute for a model."""
    return {name: build for name, build in peers.items() if not name.endswith("compile")}


def _limits(threads: int) -> roofline.Roofline:
    """The roofline for this many threads, measured in a process of its own."""
    side = Side("roofline", threads)
    try:
        return side.compute(roofline.measure)
    finally:
        side.close()


def _measured(
    case: Case, sides: dict[str, Side], threads: int, limits: roofline.Roofline, rounds: int, calls: int
) -> Outcome:
    builds = {OURS: case.ours, **case.peers}
    where = {name: process_of(name) for name in builds}
    for name, build in builds.items():
        if where[name] not in sides:
            sides[where[name]] = Side(where[name], threads)
        sides[where[name]].build(name, build)
    samples: dict[str, list[float]] = {name: [] for name in builds}
    for _ in range(rounds):
        for name in builds:
            time.sleep(PAUSE)
            samples[name] += sides[where[name]].time(name, calls=calls, warmup=1)
    for name in builds:
        sides[where[name]].drop(name)
    return Outcome(case, samples, limits.milliseconds(case.dtype, case.flops, case.bytes))


def _table(name: str, outcomes: list[Outcome], threads: int) -> Table:
    table = Table(title=f"{name}, {threads} thread{'s' * (threads > 1)}, medians")
    for heading in ("case", "ours ms", "best peer ms", "best peer", "ours / peer", "target", "of roofline", ""):
        table.add_column(heading, justify="left" if heading in ("case", "best peer", "") else "right")
    for outcome in outcomes:
        case = outcome.case
        share = "" if case.share is None else f" (of {case.share:.0%})"
        table.add_row(
            case.name,
            f"{outcome.medians[OURS]:.3f}",
            f"{outcome.medians[outcome.best_peer]:.3f}",
            outcome.best_peer,
            f"{outcome.ratio:.2f}",
            f"{outcome.target:.2f}",
            f"{outcome.share:.0%}{share}",
            "met" if outcome.met else "missed",
        )
    return table
