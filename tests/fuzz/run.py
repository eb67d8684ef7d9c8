"""Runs seeds in processes of their own: what crashes takes one module with it, not the run."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random

from autocast.kernels import detect_target
from tests.fuzz.backends import BACKENDS
from tests.fuzz.check import Outcome, check
from tests.fuzz.generator import Case, generate
from tests.fuzz.shrink import shrink
from tests.kernels.targets.cpu.emulation import running_code_for

#: A process is replaced after so many modules: machine code is not given back.
_MODULES = 400
#: A module that takes so long, in seconds, hangs.
_LONGEST = 120.0


@dataclass(frozen=True)
class Report:
    """What came of one seed, of its module as it is and after AutoCast."""

    seed: int
    outcomes: tuple[tuple[str | None, Outcome], ...]
    written: str = ""


def policy(case: Case) -> dict[str, str]:
    """More of AutoCast's policy: a preset, now and then."""
    random = Random(case.seed + 1)
    return {"preset": random.choice(["mp0", "mp1", "mp4", "rules", "pure"])} if random.randrange(6) == 0 else {}


def outcome(case: Case, amp: str | None, target: str = "cpu") -> Outcome:
    """What comes of a case on a target."""
    try:
        mod = case.module()
    except Exception as error:
        return Outcome("ill-formed", f"{type(error).__name__}: {error}")
    dtypes = [argument.dtype for argument in case.arguments]
    prepare = partial(BACKENDS[target], seed=case.seed)
    try:
        return check(mod, case.values(), dtypes, case.parameters, amp, prepare, policy(case))
    except Exception:
        return Outcome("raw", traceback.format_exc(), "interpret")


def run_seed(seed: int, target: str, directory: Path | None, seconds: float) -> Report:
    """Generate, check, and shrink what fails."""
    case = generate(seed)
    outcomes: list[tuple[str | None, Outcome]] = []
    written = ""
    for amp in dict.fromkeys((None, case.amp)):
        found = outcome(case, amp, target)
        outcomes.append((amp, found))
        if found.bad and directory is not None and not written:
            small = shrink(case, same_failure(found, amp, target), seconds)
            written = str(write(small, amp, outcome(small, amp, target), directory, target))
        if found.kind in ("ill-formed", "unknown"):
            break
    return Report(seed, tuple(outcomes), written)


def same_failure(found: Outcome, amp: str | None, target: str = "cpu") -> Callable[[Case], bool]:
    """Whether a case fails as `found` says."""

    def fails(case: Case) -> bool:
        again = outcome(case, amp, target)
        return again.bad and again.signature == found.signature

    return fails


def write(case: Case, amp: str | None, found: Outcome, directory: Path, target: str = "cpu") -> Path:
    """A file that shows a failure, and repeats it when it is run."""
    directory.mkdir(parents=True, exist_ok=True)
    options = {"seed": case.seed, "parameters": case.parameters, "amp": amp, "target": target}
    path = directory / f"seed_{case.seed}{'_' + amp if amp else ''}.py"
    comment = "\n".join(f"# {line}" for line in f"{found.stage} {found.detail}".strip().splitlines()[-30:])
    numbers = (v.astype("float64" if "float" in str(v.dtype) else v.dtype).ravel().tolist() for v in case.values())
    arguments = ",\n    ".join(
        f"({a.name!r}, {a.dtype!r}, {tuple(d.value for d in a.dims)}, {values})"
        for a, values in zip(case.arguments, numbers, strict=True)
    )
    path.write_text(
        f"# Seed {case.seed} on {target}, AutoCast to {amp}, {policy(case)}; {found.kind}:\n{comment}\n\n"
        "from numpy import inf, nan  # noqa: F401\n\n"
        f'MODULE = """\n{case.text}"""\nARGUMENTS = [\n    {arguments}\n]\n\n'
        f"from tests.fuzz.run import repeat\n\n"
        f'if __name__ == "__main__":\n'
        f"    print(repeat(MODULE, ARGUMENTS, **{options}))\n"
    )
    return path


def repeat(text: str, arguments: list, *, seed: int, parameters: int, amp: str | None, target: str = "cpu") -> Outcome:
    """What comes of a failure that `write` wrote."""
    import ml_dtypes
    import numpy as np

    from tests.fuzz.generator.writer import Dim, Var

    variables = tuple(Var(name, tuple(map(Dim.of, shape)), dtype) for name, dtype, shape, _ in arguments)
    values = tuple(
        np.array(numbers, np.float64 if "float" in dtype else dtype)
        .astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        .reshape(shape)
        for _, dtype, shape, numbers in arguments
    )
    return outcome(Case(seed, text, variables, parameters, amp, values), amp, target)


def _work(pipe: Connection, target: str, directory: Path | None, seconds: float) -> None:
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # TVM prints every module that it does not take
    with running_code_for(detect_target()):
        while (seed := pipe.recv()) is not None:
            try:
                pipe.send(run_seed(seed, target, directory, seconds))
            except Exception:
                pipe.send(Report(seed, ((None, Outcome("raw", traceback.format_exc(), "fuzz")),)))


@dataclass
class _Worker:
    process: multiprocessing.process.BaseProcess
    pipe: Connection
    seed: int
    done: int = 0

    def ask(self, seed: int) -> None:
        self.seed = seed
        self.pipe.send(seed)

    def stop(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


def run(
    seeds: Iterator[int], jobs: int, directory: Path | None, shrink_seconds: float = 60.0, target: str = "cpu"
) -> Iterator[Report]:
    """The reports of some seeds, in the order in which they are done.

    Parameters
    ----------
    directory
        Where failures are written, shrunk; None: nowhere.
    """
    context = multiprocessing.get_context("spawn")

    def start(seed: int) -> _Worker:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, target, directory, shrink_seconds), daemon=True)
        process.start()
        theirs.close()
        worker = _Worker(process, ours, seed)
        worker.ask(seed)
        return worker

    workers = [start(seed) for seed in islice(seeds, jobs)]
    while workers:
        ready = wait([worker.pipe for worker in workers], _LONGEST + shrink_seconds)
        for worker in [w for w in workers if w.pipe in ready] or workers[:1]:
            workers.remove(worker)
            try:
                if worker.pipe not in ready:
                    raise TimeoutError
                yield worker.pipe.recv()
            except (EOFError, ConnectionError, TimeoutError) as error:
                worker.stop()
                how = "hangs" if isinstance(error, TimeoutError) else f"exit code {worker.process.exitcode}"
                yield Report(worker.seed, ((None, Outcome("crashed", how, "run")),))
                worker.done = _MODULES
            worker.done += 1
            seed = next(seeds, None)
            if seed is None:
                worker.stop()
            elif worker.done >= _MODULES:
                worker.stop()
                workers.append(start(seed))
            else:
                worker.ask(seed)
                workers.append(worker)


def summary_key(found: Outcome) -> str:
    """What outcomes are counted by."""
    if found.bad or found.kind in ("refused", "unknown"):
        return found.signature if found.kind != "unknown" else f"unknown: {re.sub('[0-9]+', '#', found.detail)[:80]}"
    return found.kind


__all__ = ["Report", "outcome", "repeat", "run", "run_seed", "same_failure", "summary_key", "write"]
