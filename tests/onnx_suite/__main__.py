"""Run ONNX's own node tests, and print what came of them: `python -m tests.onnx_suite --help`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.onnx_suite.check import FORMS, cases, verdicts


def main() -> int:
    """1 if anything is wrong or fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_suite", description=__doc__)
    parser.add_argument("parts", nargs="*", help="only tests whose name has one of these in it")
    parser.add_argument("--form", choices=FORMS, action="append", help="only tests of this form")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every Nth test from the Ith on (0/1)")
    options = parser.parse_args()
    first, step = map(int, options.part.split("/"))
    names = [name for name in cases() if not options.parts or any(part in name for part in options.parts)]
    counts: Counter[tuple[str, str]] = Counter()
    best: dict[str, str] = {}
    for name, form, verdict in verdicts(names[first::step], options.form or FORMS):
        counts[form, verdict.status] += 1
        if form != "varying":
            best[name] = verdict.status  # the second form is the one that models have
        if verdict.status != "right":
            print(f"{verdict.status} {name} ({form}): {' '.join(verdict.detail.split())[:200]}", flush=True)
    print(dict(counts), "as models have them:", dict(Counter(best.values())))
    return int(any(status in ("wrong", "failed") for _, status in counts))


sys.exit(main())
