"""`python -m tests.fuzz --count 20000 --seed 0`: random modules against the interpreter."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def main() -> int:
    """Run modules; 0 if none of them fails."""
    os.environ["AUTOCAST_DEBUG"] = "poison"
    for name in ("AUTOCAST_NUM_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = "1"
    from autocast.terminal import at_least

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Random modules against an interpreter.")
    parser.add_argument("--count", type=at_least(1), default=200, help="how many modules")
    parser.add_argument("--seed", type=at_least(0), default=0, help="the first one's seed")
    parser.add_argument("--jobs", type=at_least(1), default=1, help="processes")
    parser.add_argument("--one", type=int, metavar="SEED", help="show the module of one seed, and what comes of it")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="where failures are written")
    parser.add_argument("--shrink", type=float, default=60.0, metavar="SECONDS", help="for each failure")
    parser.add_argument("--target", choices=("cpu", "torch"), default="cpu", help="what runs them (cpu)")
    options = parser.parse_args()
    return one(options.one, options.target) if options.one is not None else many(options)


def one(seed: int, target: str) -> int:
    """Show one module."""
    from tests.fuzz.generator import generate
    from tests.fuzz.run import outcome

    case = generate(seed)
    print(case.text)
    found = [outcome(case, amp, target) for amp in dict.fromkeys((None, case.amp))]
    for result in found:
        print(result)
    return int(any(result.bad for result in found))


def many(options: argparse.Namespace) -> int:
    """Run modules, and count what comes of them."""
    from tests.fuzz.run import run, summary_key

    console = Console()
    counts: Counter[str] = Counter()
    examples: dict[str, int] = {}
    compared = failed = done = 0
    started = time.monotonic()
    seeds = iter(range(options.seed, options.seed + options.count))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with suppress(KeyboardInterrupt), Progress(*columns, console=console, disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task("modules", total=options.count)
        for report in run(seeds, options.jobs, options.failures, options.shrink, options.target):
            bad = False
            for amp, found in report.outcomes:
                key = summary_key(found)
                counts[key] += 1
                examples.setdefault(key, report.seed)
                compared += found.compared
                if found.bad:
                    bad = True
                    first = found.detail.strip().splitlines()[-1:] or [""]
                    console.print(
                        f"seed {report.seed}, {amp or 'as it is'}: {found.kind} {found.stage} {first[0][:300]}",
                        highlight=False, markup=False, soft_wrap=True,
                    )  # fmt: skip
            failed += bad
            done += 1
            if not sys.stdout.isatty() and done % 500 == 0:
                console.print(f"{done} modules in {time.monotonic() - started:.0f} s, {failed} failed", highlight=False)
            progress.update(task, advance=1, description=f"modules, {failed} failed")
    seconds = time.monotonic() - started
    for key, count in counts.most_common():
        console.print(f"{count:7}  {key}  (seed {examples[key]})", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{done} modules in {seconds:.0f} s, {failed} failed; {compared} elements compared"
        + (f"; failures in {options.failures}" if failed else ""),
        highlight=False,
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
