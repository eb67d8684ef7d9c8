"""Run torch's own samples of its operators or modules, and print what came of each: `python -m tests.opinfo --help`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from autocast.terminal import at_least
from tests.opinfo.check import Status, Verdict, worst
from tests.opinfo.modules import modules
from tests.opinfo.samples import operators
from tests.opinfo.workers import Task, Worker

_CHECKS = {
    "gradients": "gradients by torch.compile",
    "training": "gradients by autocast.training",
    "mixed": "errors in bfloat16",
    "onnx": "results of ONNX files",
}

_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def main() -> int:
    """1 if anything is wrong or crashes."""
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo", description=__doc__)
    parser.add_argument("parts", nargs="*", help="only those whose name has one of these in it")
    parser.add_argument("--modules", action="store_true", help="torch.nn's modules instead of operators")
    parser.add_argument("--dtype", choices=_DTYPES, help="of operators' samples (float32, or else int64)")
    parser.add_argument("--samples", type=at_least(0), help="of each (10, of operators' gradients 2), 0: all")
    checks = parser.add_mutually_exclusive_group()
    for name, what in _CHECKS.items():
        checks.add_argument(
            f"--{name}", dest="check", action="store_const", const=name, help=f"{what} instead of results"
        )
    parser.set_defaults(check="results")
    parser.add_argument("--jobs", type=at_least(1), default=1, help="how many processes (1)")
    options = parser.parse_args()
    if options.modules and options.dtype:
        parser.error("--dtype is of operators: modules have samples of float32 alone")
    few = 10 if options.modules or options.check == "results" else 2
    samples = few if options.samples is None else options.samples
    rows = modules(*options.parts) if options.modules else operators(*options.parts, dtype=options.dtype)
    names = list(dict.fromkeys(row.name for row in rows))
    workers: SimpleQueue[Worker] = SimpleQueue()
    for _ in range(options.jobs):
        workers.put(Worker())

    def run(name: str) -> tuple[str, list[Verdict], float]:
        started, worker = time.monotonic(), workers.get()
        try:
            verdicts = worker.run(Task(name, samples or None, check=options.check, dtype=options.dtype))
            return name, verdicts, time.monotonic() - started
        finally:
            workers.put(worker)

    totals: Counter[Status] = Counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, verdicts, seconds in pool.map(run, names):
            status = worst(verdicts)
            totals[status] += 1
            print(f"{name:50} {status:8} {_counts(verdicts):40} {seconds:6.1f} s")
            told = {verdict for verdict in verdicts if verdict.status is not Status.RIGHT}
            for verdict in sorted(told):
                print(f"    {verdict.status}: {verdict.detail}")
            sys.stdout.flush()
    while not workers.empty():
        workers.get().close()
    print(f"{sum(totals.values())} in all: " + ", ".join(f"{totals[status]} {status}" for status in Status))
    return 1 if totals[Status.WRONG] or totals[Status.CRASHED] else 0


def _counts(verdicts: list[Verdict]) -> str:
    counts = Counter(verdict.status for verdict in verdicts)
    return ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])


if __name__ == "__main__":
    sys.exit(main())
