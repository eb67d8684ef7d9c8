"""How soon a compiled model answers in a fresh process: import, load, first call, tenth call, and the file's size.

    python -m benchmarks.starting [--quick] [--rounds 5]

Each side writes its file once; then each round starts a process for each side in turn, which imports what it needs,
loads the file, and calls the model ten times. BERT-base, batch 1 x 128, bfloat16 where the side can.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.timing import save

#: Calls in a process: the first waits for what is made or mapped late, the last is like every other.
CALLS = 10

#: What a round measures, in seconds.
PHASES = ("import", "load", "first call", f"call {CALLS}")


class Side(NamedTuple):
    """One way to deploy: what writes its file, and what imports and loads it; that is what `start` does in turn."""

    write: Callable[[Any, Any, Path], None]
    start: tuple[Callable[[], Any], Callable[[Any, Path], Callable[[np.ndarray], Any]]]


def _write_ours(module: Any, ids: Any, path: Path) -> None:
    import autocast

    autocast.compile(autocast.amp.autocast(autocast.from_torch(module, (ids,)))).export(path)


def _import_ours() -> Any:
    from autocast import runtime

    return runtime


def _load_ours(runtime: Any, path: Path) -> Callable[[np.ndarray], Any]:
    call: Callable[[np.ndarray], Any] = runtime.load(path)
    return call


def _write_inductor(module: Any, ids: Any, path: Path) -> None:
    import torch

    with torch.no_grad():
        program = torch.export.export(module.bfloat16(), (ids,), strict=False)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def _import_inductor() -> Any:
    import torch
    import torch._inductor

    return torch


def _load_inductor(torch: Any, path: Path) -> Callable[[np.ndarray], Any]:
    model = torch._inductor.aoti_load_package(str(path))
    return lambda ids: model(torch.from_numpy(ids))


def _write_onnx(module: Any, ids: Any, path: Path) -> None:
    import torch

    torch.onnx.export(module.float(), (ids,), str(path), dynamo=True, external_data=False, verbose=False)


def _import_onnx() -> Any:
    import onnxruntime

    return onnxruntime


def _load_onnx(onnxruntime: Any, path: Path) -> Callable[[np.ndarray], Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda ids: session.run(None, {name: ids})


SIDES = {
    "ours": Side(_write_ours, (_import_ours, _load_ours)),
    "AOTInductor": Side(_write_inductor, (_import_inductor, _load_inductor)),
    "onnxruntime, float32": Side(_write_onnx, (_import_onnx, _load_onnx)),
}


def started(side: str, path: Path) -> dict[str, float]:
    """Seconds of each phase, in this process."""
    ids = np.random.default_rng(0).integers(0, 1000, (1, 128))
    importing, loading = SIDES[side].start
    imported, import_seconds = _timed(importing)
    call, load_seconds = _timed(lambda: loading(imported, path))
    calls = [_timed(lambda: call(ids))[1] for _ in range(CALLS)]
    return dict(zip(PHASES, (import_seconds, load_seconds, calls[0], calls[-1]), strict=True))


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    started_at = time.perf_counter()
    result = function()
    return result, time.perf_counter() - started_at


def measure(rounds: int, names: list[str]) -> dict[str, Any]:
    """Size of the file, MiB, and the samples of each phase, by side."""
    from benchmarks.workload import bert

    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder, f"{number}.pt2") for number, name in enumerate(names)}
        for name, path in paths.items():
            module, (ids,) = bert(layers=12, batch=1)
            SIDES[name].write(module, ids, path)
            figures[name] = {"MiB": path.stat().st_size / 2**20, **{phase: [] for phase in PHASES}}
        for _ in track(range(rounds), description="starting", transient=True):
            for name, path in paths.items():
                command = [sys.executable, "-W", "ignore", "-m", "benchmarks.starting", "--side", name, str(path)]
                found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                for phase in PHASES:
                    figures[name][phase].append(found[phase])
    return figures


def table(figures: dict[str, Any]) -> Table:
    """One row for each side, with medians."""
    shown = Table(title="a compiled BERT-base in a fresh process: medians, seconds")
    for heading in ("", "MiB", *PHASES, "to the first answer"):
        shown.add_column(heading, justify="left" if not heading else "right")
    for name, one in figures.items():
        medians = [statistics.median(one[phase]) for phase in PHASES]
        shown.add_row(name, f"{one['MiB']:.0f}", *(f"{value:.3f}" for value in medians), f"{sum(medians[:3]):.2f}")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="our side alone, 2 rounds, no JSON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(started(options.side[0], Path(options.side[1]))))
        return
    figures = measure(2 if options.quick else options.rounds, ["ours"] if options.quick else list(SIDES))
    Console(width=120).print(table(figures))
    if not options.quick:
        save("starting", {"sides": figures})


if __name__ == "__main__":
    main()
