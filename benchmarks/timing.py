"""Measuring several candidates side by side, and writing down what was measured and on what machine."""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Timing:
    """What one candidate took, call by call, in milliseconds."""

    name: str
    milliseconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median call, ms."""
        return statistics.median(self.milliseconds)

    @property
    def best(self) -> float:
        """The fastest call, ms."""
        return min(self.milliseconds)


def alternate(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    calls: int = 1,
    warmup: int = 1,
    pause: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time every candidate `calls` times in each of `rounds` rounds, in turn, so that a slow minute hits them all.

    Parameters
    ----------
    candidates : name -> function without arguments
    rounds, calls : the number of rounds, and of timed calls of each candidate in a round
    warmup : untimed calls before the timed ones of each round, which bring back caches and wake threads
    pause : seconds of rest before each candidate. Thread pools spin for a while after their last job; without a pause
        one candidate's pool takes cores from the next one.
    clock : seconds. `time.process_time` for candidates with one thread: what else the machine does then counts less.

    Returns
    -------
    dict of Timing
        In the order of the candidates.
    """
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            gc.collect()
            time.sleep(pause)
            for _ in range(warmup):
                call()
            for _ in range(calls):
                start = clock()
                call()
                samples[name].append((clock() - start) * 1e3)
    return {name: Timing(name, tuple(values)) for name, values in samples.items()}


def machine() -> dict[str, object]:
    """The processor, its cores, and the versions of what is compared."""
    versions = {}
    for package in ("relax-autocast", "apache-tvm", "torch", "transformers", "numpy", "scipy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"processor": _processor(), "cores": os.cpu_count(), "python": platform.python_version(), **versions}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def save(name: str, figures: Mapping[str, object]) -> Path:
    """Write figures and a description of the machine to `benchmarks/results/NAME.json`; return its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    text = json.dumps({"machine": machine(), **figures}, indent=1, default=_plain)
    path.write_text(text + "\n")
    return path


def load(name: str) -> dict[str, Any]:
    """What `save` wrote under this name; nothing if it did not."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _plain(value: object) -> object:
    if isinstance(value, Timing):
        rounded = [round(sample, 3) for sample in value.milliseconds]
        return {**asdict(value), "milliseconds": rounded, "median": round(value.median, 3)}
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
