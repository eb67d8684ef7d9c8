"""How long the first call of a model takes in a fresh process, by phase, with empty and with filled caches.

    python -m benchmarks.first_iteration [--quick] [--only BERT] [--rounds 3]

A round starts a process for each side and state of its cache, in turn. It makes the torch module, which is not timed,
and then does all that a program does until the module has answered twice. The cold processes of a round have a cache
of their own, which its warm ones find filled. Mixed precision, bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.timing import save

#: The phases that there are, in order: other sides have fewer.
PHASES = ("import", "from torch", "casts", "compile", "first call", "second call")

STATES = ("cold", "warm")

_QUICK = "BERT-base 1 layer, 8 x 128"


class Clock:
    """Seconds of phases, each since the one before it ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """The phase ends now."""
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now


def ours(module: Any, inputs: tuple[Any, ...], labels: Any) -> dict[str, float]:
    """This project: the first step of training where there are labels, else the first inference."""
    clock = Clock()
    import autocast
    from autocast import amp, vm

    if labels is not None:
        from autocast import training
    clock.lap("import")
    model = autocast.from_torch(module, inputs, cached=True)
    clock.lap("from torch")
    if labels is not None:
        import torch

        model = training.training_step(model, training.CrossEntropy(), training.SGD(momentum=0.01))
        inputs = (*inputs, labels, torch.tensor(0.1))
    model = amp.autocast(model)
    clock.lap("casts")
    executable = vm.compile(model)
    clock.lap("compile")
    executable(*inputs)
    clock.lap("first call")
    executable(*inputs)
    clock.lap("second call")
    return clock.seconds


def torch_compile(module: Any, inputs: tuple[Any, ...], labels: Any) -> dict[str, float]:
    """`torch.compile` under `torch.autocast`."""
    import torch

    clock = Clock()
    compiled = torch.compile(module)
    if labels is None:

        def call() -> None:
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
                compiled(*inputs)

    else:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.01, fused=True)

        def call() -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                logits = compiled(*inputs)
            torch.nn.functional.cross_entropy(logits.flatten(0, -2).float(), labels.flatten()).backward()
            optimizer.step()

    for phase in PHASES[-2:]:
        call()
        clock.lap(phase)
    return clock.seconds


SIDES: dict[str, Callable[[Any, tuple[Any, ...], Any], dict[str, float]]] = {
    "ours": ours,
    "torch: compile": torch_compile,
}


def cases() -> dict[str, tuple[Callable[[], tuple[Any, tuple[Any, ...]]], bool]]:
    """Every model by name, and whether it is trained."""
    from benchmarks.workload import MODELS, TRAINED

    chosen = ("BERT-base 1 layer, 8 x 128", "BERT-base, 8 x 128", "ResNet-50, 4 images")
    every: dict[str, tuple[Callable[[], tuple[Any, tuple[Any, ...]]], bool]] = {
        name: (MODELS[name], False) for name in chosen
    }
    return every | {f"{name}, a training step": (TRAINED[name], True) for name in (chosen[0], chosen[2])}


def first(side: str, case: str) -> dict[str, float]:
    """Seconds of each phase, in this process."""
    import torch

    make, trained = cases()[case]
    module, inputs = make()
    labels = None
    if trained:
        with torch.no_grad():
            logits = module(*inputs)
        labels = torch.randint(0, logits.shape[-1], logits.shape[:-1])
    return SIDES[side](module, inputs, labels)


def measure(rounds: int, sides: list[str], names: list[str]) -> dict[str, Any]:
    """Samples of each phase, by model, then side and state of its cache."""
    figures: dict[str, Any] = {}
    with Progress(transient=True) as progress:
        task = progress.add_task("first iterations", total=rounds * len(names) * len(sides) * len(STATES))
        for name in names:
            for _ in range(rounds):
                with tempfile.TemporaryDirectory() as folder:
                    for state in STATES:
                        for side in sides:
                            found = _in_process(side, name, folder)
                            one = figures.setdefault(name, {}).setdefault(f"{side}, {state}", {})
                            for phase, seconds in found.items():
                                one.setdefault(phase, []).append(seconds)
                            progress.advance(task)
    return figures


def _in_process(side: str, name: str, folder: str) -> dict[str, float]:
    caches = {
        "AUTOCAST_CACHE": "on",
        "AUTOCAST_CACHE_DIR": str(Path(folder, "ours")),
        "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor")),
    }
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.first_iteration", "--side", side, name]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | caches, check=False)
    if ended.returncode:
        raise RuntimeError(f"{side}, {name!r}: the process failed:\n{ended.stderr}")
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def table(name: str, sides: dict[str, Any]) -> Table:
    """One row for each side and state of its cache, with medians."""
    shown = Table(title=f"{name}: medians, seconds")
    for heading in ("", *PHASES, "to the first answer"):
        shown.add_column(heading, justify="left" if not heading else "right")
    for side, phases in sides.items():
        medians = {phase: statistics.median(samples) for phase, samples in phases.items()}
        row = [f"{medians[phase]:.2f}" if phase in medians else "" for phase in PHASES]
        shown.add_row(side, *row, f"{sum(medians.values()) - medians[PHASES[-1]]:.2f}")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="our side on one model, once, no JSON")
    parser.add_argument("--only", default="", help="models whose names have this in them; no JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", nargs=2, metavar=("SIDE", "MODEL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(first(*options.side)))
        return
    only = _QUICK if options.quick else options.only
    names = [name for name in cases() if only in name][: 1 if options.quick else None]
    figures = measure(1 if options.quick else options.rounds, ["ours"] if options.quick else list(SIDES), names)
    for name, sides in figures.items():
        Console(width=120).print(table(name, sides))
    if not only:
        save("first_iteration", {"models": figures})


if __name__ == "__main__":
    main()
