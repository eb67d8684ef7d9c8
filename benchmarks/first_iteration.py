"""How long the first call of a model takes in a fresh process, by phase, with empty and with filled caches.

    python -m benchmarks.first_iteration [--quick] [--only BERT] [--rounds 3]

A round starts a process for each side and state of its cache, in turn. It makes the torch module (for onnxruntime, its
file), which is not timed, and then does all that a program does until the module has answered twice. The cold processes
of a round have a cache of their own, which its warm ones find filled. Mixed precision, bfloat16; onnxruntime, which
has none on CPUs, in float32.
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
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from benchmarks.timing import save

#: The phases that there are, in order: other sides have fewer.
PHASES = ("import", "from torch", "casts", "compile", "first call", "second call")

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


def ours(module: Any, inputs: tuple[Any, ...], labels: Any, mode: str) -> dict[str, float]:
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
    executable = vm.compile(model, mode=mode)
    clock.lap("compile")
    for phase in PHASES[-2:]:
        executable(*inputs)
        clock.lap(phase)
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


def onnxruntime(module: Any, inputs: tuple[Any, ...], _labels: Any) -> dict[str, float]:
    """A session of the file that torch exports beforehand."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        torch.onnx.export(module, inputs, path, dynamo=True, verbose=False)
        clock = Clock()
        from onnxruntime import InferenceSession, SessionOptions

        clock.lap("import")
        options = SessionOptions()
        options.intra_op_num_threads = os.cpu_count() or 1
        session = InferenceSession(path, options, providers=["CPUExecutionProvider"])
        clock.lap("compile")
        feeds = {given.name: x.numpy() for given, x in zip(session.get_inputs(), inputs, strict=True)}
        for phase in PHASES[-2:]:
            session.run(None, feeds)
            clock.lap(phase)
    return clock.seconds


class Side(NamedTuple):
    """What runs, the states of its cache in which it does, how it is drawn, and whether it trains."""

    run: Callable[..., dict[str, float]]
    states: tuple[str, ...]
    colour: str
    trains: bool = True


SIDES = {
    "ours": Side(partial(ours, mode="fast"), ("cold", "warm"), "#1f6feb"),
    "ours, dynamic_hybrid": Side(partial(ours, mode="dynamic_hybrid"), ("cold",), "#bf3989"),
    "torch.compile": Side(torch_compile, ("cold", "warm"), "#2da44e"),
    "onnxruntime": Side(onnxruntime, ("cold",), "#8b949e", trains=False),
}


def cases() -> dict[str, tuple[Callable[[], tuple[Any, tuple[Any, ...]]], bool]]:
    """Every model by name, and whether it is trained."""
    from benchmarks.workload import ARCHITECTURES, MODELS, TRAINED, segformer, swin

    whole = {name: MODELS[name] for name in ("BERT-base, 8 x 128", "ResNet-50, 4 images")}
    whole |= {"Swin-T, 1 image": swin, "SegFormer-B0, 1 image": segformer}
    resnet = "ResNet-50, 4 images"
    return {
        **{name: (make, False) for name, make in (ARCHITECTURES | whole).items()},
        **{
            f"{name}, a training step": (make, True)
            for name, make in (ARCHITECTURES | {resnet: TRAINED[resnet]}).items()
        },
    }


def made(case: str) -> tuple[Any, tuple[Any, ...], Any]:
    """The module of a case, its inputs, and labels where it is trained."""
    import torch

    make, trained = cases()[case]
    module, inputs = make()
    if not trained:
        return module, inputs, None
    with torch.no_grad():
        logits = module(*inputs)
    return module, inputs, torch.randint(0, logits.shape[-1], logits.shape[:-1])


def first(side: str, case: str) -> dict[str, float]:
    """Seconds of each phase, in this process."""
    return SIDES[side].run(*made(case))


def measure(rounds: int, sides: list[str], names: list[str]) -> dict[str, Any]:
    """Samples of each phase, by model, then side and state of its cache; without the peers that fail."""
    figures: dict[str, Any] = {}
    runs = [(name, side) for name in names for side in sides if SIDES[side].trains or not cases()[name][1]]
    with Progress(transient=True) as progress:
        task = progress.add_task("first iterations", total=rounds * sum(len(SIDES[side].states) for _, side in runs))
        for (name, side), _ in product(runs, range(rounds)):
            with tempfile.TemporaryDirectory() as folder:
                for state in SIDES[side].states:
                    progress.advance(task)
                    try:
                        found = _in_process(side, name, folder)
                    except RuntimeError as error:
                        if side.startswith("ours"):
                            raise
                        progress.print(f"[red]{escape(str(error))}[/]")
                        continue
                    one = figures.setdefault(name, {}).setdefault(f"{side}, {state}", {})
                    for phase, seconds in found.items():
                        one.setdefault(phase, []).append(seconds)
    return figures


def _in_process(side: str, name: str, folder: str) -> dict[str, float]:
    caches = {
        "AUTOCAST_CACHE": "on",
        "AUTOCAST_CACHE_DIR": str(Path(folder, "ours")),
        "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor")),
        "PYTHONDONTWRITEBYTECODE": "",  # installed packages have their byte code
    }
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.first_iteration", "--side", side, name]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | caches, check=False)
    if ended.returncode:
        raise RuntimeError(f"{side}, {name!r}: the process failed:\n{ended.stderr[-1000:]}")
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def medians(phases: Mapping[str, list[float]]) -> tuple[dict[str, float], float]:
    """Seconds of each phase, and until the first answer."""
    found = {phase: statistics.median(samples) for phase, samples in phases.items()}
    return found, sum(found.values()) - found[PHASES[-1]]


def table(name: str, sides: Mapping[str, Mapping[str, list[float]]]) -> Table:
    """One row for each side and state of its cache, with medians."""
    shown = Table(title=f"{name}: medians, seconds")
    for heading in ("", *PHASES, "to the first answer"):
        shown.add_column(heading, justify="left" if not heading else "right")
    for side, phases in sides.items():
        found, answered = medians(phases)
        row = [f"{found[phase]:.2f}" if phase in found else "" for phase in PHASES]
        shown.add_row(side, *row, f"{answered:.2f}")
    return shown


def plot(figures: Mapping[str, Mapping[str, Mapping[str, list[float]]]]) -> Path:
    """Write `docs/first_iteration.svg`: seconds to the first answer, one line for each model."""
    import matplotlib

    matplotlib.use("svg")
    # The same figures make the same file: no date, and names from a fixed salt.
    matplotlib.rcParams.update({"svg.hashsalt": "autocast", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    from benchmarks.convergence_workloads import DOCS  # not above: it imports what is measured

    figure, axes = pyplot.subplots(figsize=(8, 0.5 + 0.28 * len(figures)), layout="constrained")
    for side, (_, states, colour, _) in SIDES.items():
        for state in states:
            rows = [row for row, found in enumerate(figures.values()) if f"{side}, {state}" in found]
            seconds = [medians(list(figures.values())[row][f"{side}, {state}"])[1] for row in rows]
            label = f"{side}, {state}" if len(states) > 1 else side
            fill = colour if state == "cold" else "none"
            axes.scatter(seconds, rows, s=30, facecolors=fill, edgecolors=colour, label=label, zorder=2)
    axes.set(xlabel="seconds to the first answer", xscale="log", yticks=range(len(figures)), yticklabels=list(figures))
    axes.invert_yaxis()
    axes.grid(alpha=0.25, which="both")
    figure.legend(ncols=3, frameon=False, loc="outside upper center")
    path = DOCS / "first_iteration.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    # Matplotlib ends the lines of paths with a space.
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    return path


def main() -> None:
    """Measure, show, and write benchmarks/results/first_iteration.json and the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="our sides on one model, once, no JSON")
    parser.add_argument("--only", default="", help="models whose names have this in them; no JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", nargs=2, metavar=("SIDE", "MODEL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(first(*options.side)))
        return
    only = _QUICK if options.quick else options.only
    names = [name for name in cases() if only in name][: 1 if options.quick else None]
    sides = [side for side in SIDES if not options.quick or side.startswith("ours")]
    figures = measure(1 if options.quick else options.rounds, sides, names)
    for name, found in figures.items():
        Console(width=120).print(table(name, found))
    if not only:
        save("first_iteration", {"models": figures})
        Console().print(f"drawn: {plot(figures)}")


if __name__ == "__main__":
    main()
