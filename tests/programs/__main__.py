"""Run random programs, and print those of which something else comes than of torch."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter

from rich.console import Console
from rich.progress import track

from autocast.terminal import at_least


def main() -> int:
    """1 if a program fails."""
    os.environ["AUTOCAST_DEBUG"] = "poison"
    from tests.programs.check import WAYS, check
    from tests.programs.generate import generate
    from tests.programs.shrink import shrunk

    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--count", type=at_least(1), default=100, help="how many programs, each way (100)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="the first one's seed (0)")
    parser.add_argument("--length", type=at_least(1), default=7, help="statements of each (7)")
    parser.add_argument("--way", choices=WAYS, action="append", help="only so; may be repeated")
    options = parser.parse_args()
    console, counts = Console(), Counter[str]()
    for way in options.way or WAYS:
        seeds = range(options.seed, options.seed + options.count)
        for seed in track(seeds, description=way, console=console, disable=not sys.stdout.isatty()):
            program = generate(seed, options.length, gradients=not way.startswith("imported"))
            outcome = check(program, way)
            counts[outcome.kind] += 1
            if outcome.is_bad:
                small = shrunk(program, way, outcome)
                why = check(small, way).why.strip()[:1000]
                console.print(f"seed {seed}, {way}: {outcome.kind}: {why}\n{small.text}", markup=False, highlight=False)
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    return int(bool(counts["wrong"] or counts["raised"]))


if __name__ == "__main__":
    sys.exit(main())
