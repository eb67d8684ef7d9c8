"""Try subjects one after the other, and print those that fail, made small: what the commands do."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rich.console import Console
from rich.progress import track

from autocast.terminal import at_least
from tests.programs.outcome import Outcome
from tests.programs.shrink import Subject, shrunk

T = TypeVar("T", bound=Subject)


class Search(Generic[T]):
    """`generate` makes a subject of a seed and a length, for a way; `check` says what comes of it, `runs` whether torch
    runs it."""

    def __init__(
        self,
        ways: Sequence[str],
        generate: Callable[[int, int, str], T],
        check: Callable[[T, str], Outcome],
        runs: Callable[[T, str], bool],
    ) -> None:
        self.ways, self._generate, self._check, self._runs = ways, generate, check, runs

    def smallest(self, subject: T, way: str, outcome: Outcome) -> T:
        """A part of the subject of which the same kind of outcome comes, and that torch runs."""
        return shrunk(subject, lambda part: self._runs(part, way) and self._check(part, way).kind == outcome.kind)

    def main(self, prog: str, description: str | None, length: int) -> int:
        """1 if a subject fails; what is tried is read from the command line."""
        parser = argparse.ArgumentParser(prog=prog, description=description)
        parser.add_argument("--count", type=at_least(1), default=100, help="how many, each way (100)")
        parser.add_argument("--seed", type=at_least(0), default=0, help="the first one's seed (0)")
        parser.add_argument("--length", type=at_least(1), default=length, help=f"statements of each ({length})")
        parser.add_argument("--way", choices=self.ways, action="append", help="only so; may be repeated")
        options = parser.parse_args()
        console, counts = Console(), Counter[str]()
        for way in options.way or self.ways:
            seeds = range(options.seed, options.seed + options.count)
            for seed in track(seeds, description=way, console=console, disable=not sys.stdout.isatty()):
                subject = self._generate(seed, options.length, way)
                outcome = self._check(subject, way)
                counts[outcome.kind] += 1
                if outcome.is_bad:
                    small = self.smallest(subject, way, outcome)
                    why = self._check(small, way).why.strip()[:1000]
                    told = f"seed {seed}, {way}: {outcome.kind}: {why}\n{small.text}"
                    console.print(told, markup=False, highlight=False)
        print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
        return int(bool(counts["wrong"] or counts["raised"]))
