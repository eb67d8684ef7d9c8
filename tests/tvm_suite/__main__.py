"""`python -m tests.tvm_suite FOLDER`: run the tests in FOLDER for their modules, then compare each."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.tvm_suite import FOLDER
from tests.tvm_suite.excuses import is_excused

#: Outcomes that no module should have.
_BAD = ("wrong", "raw", "crashed")


def main() -> int:
    """Harvest and compare; 0 if nothing was wrong and no error raw."""
    for name in ("AUTOCAST_NUM_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = "1"
    from autocast.terminal import at_least

    parser = argparse.ArgumentParser(prog="python -m tests.tvm_suite", description="TVM's own tests as a suite.")
    parser.add_argument("tests", type=Path, help="a folder of TVM's, tests/python/relax say, or one file of it")
    parser.add_argument("--out", type=Path, default=Path("tvm-suite"), help="where modules and outcomes are written")
    parser.add_argument("--count", type=at_least(0), default=0, help="compare so many modules, drawn at random; 0: all")
    parser.add_argument("--seconds", type=at_least(1), default=120, help="for each file of tests, and for each module")
    options = parser.parse_args()
    folder = options.out / "modules"
    if not folder.exists():
        folder.mkdir(parents=True)
        harvest(options.tests, folder, options.seconds)
    paths = sorted(folder.glob("*.py"))
    if options.count:
        paths = random.Random(0).sample(paths, min(options.count, len(paths)))
    return compare_all(paths, options.out / "outcomes.jsonl", options.seconds)


def harvest(tests: Path, folder: Path, seconds: int) -> None:
    """Write the modules that TVM's tests make; whether the tests pass does not matter."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, FOLDER: str(folder.resolve()), "PYTHONPATH": str(root)}
    options = ["-q", "-p", "tests.tvm_suite.harvest", "-p", "no:cacheprovider", "-W", "ignore"]
    for path in sorted(tests.rglob("test_*.py")) if tests.is_dir() else [tests]:
        command = [sys.executable, "-m", "pytest", *options, path.name]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=path.parent, env=environment, timeout=seconds, capture_output=True, check=False)
        print(f"{path.name}: {len(list(folder.glob('*.py')))} modules so far", flush=True)


def compare_all(paths: list[Path], outcomes: Path, seconds: int) -> int:
    """Compare each module in a process of its own; those that `outcomes` has already are not compared again."""
    from tests.tvm_suite.compare import TOLERANCES  # loads TVM once, for all processes

    known = [json.loads(line) for line in outcomes.read_text().splitlines()] if outcomes.exists() else []
    rows = {row["module"]: row for row in known}
    with outcomes.open("a") as file:
        for path in paths:
            if path.name not in rows:
                rows[path.name] = {"module": path.name, **_in_processes(path, seconds)}
                file.write(json.dumps(rows[path.name]) + "\n")
                file.flush()
    counts: Counter[str] = Counter()
    for path in paths:
        row = rows[path.name]
        found = [row[way] for way in TOLERANCES if way in row] or [row["harness"]]
        for text in found:
            bad = text.startswith(_BAD) or (text.startswith("failed") and row.get("TVM") == "ran")
            excused = bad and is_excused(path.read_text())
            counts["excused" if excused else text.partition(":")[0]] += 1
            if bad and not excused:
                print(f"{row['module']}: {text}; TVM: {row.get('TVM', '')[:120]}")
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))
    return 1 if any(counts[outcome] for outcome in _BAD) else 0


def _in_processes(path: Path, seconds: int) -> dict[str, str]:
    """What `compare` says of a module; where that crashes, or does not come back, of each way by itself."""
    from tests.tvm_suite.compare import TOLERANCES

    outcomes = _in_process(path, seconds)
    if "crashed" not in outcomes:
        return outcomes
    for way in ("TVM", *TOLERANCES):
        outcome = _in_process(path, seconds, way)
        outcomes |= {way: outcome["crashed"]} if "crashed" in outcome else outcome
    del outcomes["crashed"]
    return outcomes


def _in_process(path: Path, seconds: int, only: str = "") -> dict[str, str]:
    """What `compare` says of a module in a process of its own, or how that ended."""
    from tests.tvm_suite.compare import compare

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        try:
            answer = compare(path, only)
        except BaseException as error:
            answer = {"harness": f"not compared: {type(error).__name__}: {error}"[:500]}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    text, end = b"", time.monotonic() + seconds
    while select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(reader, 1 << 16)
        if not part:
            break
        text += part
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    try:
        return json.loads(text)
    except ValueError:
        return {"crashed": f"crashed: {f'status {status}' if status != signal.SIGKILL else f'after {seconds} s'}"}


if __name__ == "__main__":
    sys.exit(main())
