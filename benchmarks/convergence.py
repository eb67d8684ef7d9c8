"""Training in float32, bfloat16 and float16 beside torch: the same weights, batches and learning rates, three seeds.

python -m benchmarks.convergence [--quick] [--only GPT]

The curves and the losses on held-out data go to results/convergence.json and to docs/training_*.svg.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

import autocast
from autocast.training.losses import CrossEntropy
from autocast.training.trainer import Trainer
from benchmarks.convergence_plots import plot
from benchmarks.convergence_workloads import WORKLOADS, Workload
from benchmarks.sides import Side
from benchmarks.timing import load, save

PRECISIONS = ("float32", "bfloat16", "float16")
SEEDS = (0, 1, 2)
STEPS = 500
_HELD_OUT = 20

#: How far the mean loss on held-out data may be above torch's in float32, relatively, beyond what seeds do to it.
TOLERANCE = 0.02


class Run(NamedTuple):
    """One training: the loss of each step, the loss on held-out data, and the median time of a step."""

    losses: list[float]
    held_out: float
    milliseconds: float


def train_ours(name: str, precision: str, steps: int, seeds: tuple[int, ...]) -> list[Run]:
    """A run for each seed; the step is compiled once."""
    workload = WORKLOADS[name]
    amp = None if precision == "float32" else precision
    model = autocast.from_torch(workload.module(seeds[0]), workload.batch(0, 0)[:1])
    trainer = Trainer(model, CrossEntropy(), workload.optimizer, learning_rate=workload.schedule(steps), amp=amp)
    start = trainer.state_dict()
    return [_run_ours(workload, trainer, start, seed, steps) for seed in seeds]


def _run_ours(workload: Workload, trainer: Trainer, start: Mapping[str, Any], seed: int, steps: int) -> Run:
    weights = {name: tensor.numpy() for name, tensor in workload.module(seed).state_dict().items()}
    tensors = {name: weights.get(name, tensor) for name, tensor in start["tensors"].items()}
    trainer.load_state_dict({**start, "tensors": tensors})
    losses, times = [], []
    for step in range(steps):
        batch = workload.batch(seed, step)
        begun = time.perf_counter()
        losses.append(trainer.step(batch))
        times.append(time.perf_counter() - begun)
    held_out = trainer.evaluate(workload.batch(seed, step, train=False) for step in range(_HELD_OUT))
    return Run(losses, held_out, 1e3 * statistics.median(times))


def train_torch(name: str, precision: str, steps: int, seeds: tuple[int, ...]) -> list[Run]:
    """The same in torch: eager, with its own autocast and gradient scaler. Its float16 is so slow on CPUs: one seed."""
    return [
        _run_torch(WORKLOADS[name], precision, seed, steps) for seed in seeds[: 1 if precision == "float16" else None]
    ]


def _run_torch(workload: Workload, precision: str, seed: int, steps: int) -> Run:
    module = workload.module(seed)
    optimizer = workload.torch_optimizer(module.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "float16")
    schedule = workload.schedule(steps)

    def forward(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        low = precision != "float32"
        with torch.autocast("cpu", dtype=getattr(torch, precision)) if low else nullcontext():
            logits = module(batch[0])
        return functional.cross_entropy(logits.float().flatten(0, -2), batch[1].flatten())

    losses, times = [], []
    for step in range(steps):
        batch = workload.batch(seed, step)
        begun = time.perf_counter()
        optimizer.param_groups[0]["lr"] = schedule(step)
        loss = forward(batch)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        times.append(time.perf_counter() - begun)
    module.eval()
    with torch.no_grad():
        held_out = [forward(workload.batch(seed, step, train=False)).item() for step in range(_HELD_OUT)]
    return Run(losses, statistics.fmean(held_out), 1e3 * statistics.median(times))


#: The runs of a workload by side and precision: ("ours", "bfloat16").
Runs = Mapping[tuple[str, str], list[Run]]


def within(runs: Runs, precision: str) -> bool:
    """Whether our held-out loss is as good as torch's in float32, up to `TOLERANCE` and the spread over seeds."""
    reference = [run.held_out for run in runs["torch", "float32"]]
    ours = statistics.fmean(run.held_out for run in runs["ours", precision])
    spread = max(reference) - min(reference)
    return ours <= statistics.fmean(reference) * (1 + TOLERANCE) + spread


def main(arguments: list[str] | None = None) -> int:
    """Train everything, print the table, write the figures; the number of precisions that did not converge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="50 steps and one seed; nothing is written")
    parser.add_argument("--only", default="", help="only models whose name holds this text; other figures are kept")
    options = parser.parse_args(arguments)
    steps, seeds = (50, SEEDS[:1]) if options.quick else (STEPS, SEEDS)
    chosen = [name for name in WORKLOADS if options.only in name]
    console = Console(width=120)
    table = _table(steps, seeds)
    results, failed = {}, 0
    sides = {side: Side(side, len(os.sched_getaffinity(0))) for side in ("ours", "torch")}
    try:
        for name in chosen:
            runs = {}
            for precision in PRECISIONS:
                for side, train in (("torch", train_torch), ("ours", train_ours)):
                    with console.status(f"{name}, {precision}, {side}"):
                        runs[side, precision] = sides[side].compute(partial(train, name, precision, steps, seeds))
            results[name] = runs
            for (side, precision), found in runs.items():
                verdict = "" if side == "torch" else "as good" if within(runs, precision) else "worse"
                failed += verdict == "worse"
                table.add_row(name, side, precision, *_figures(found), verdict)
    finally:
        for process in sides.values():
            process.close()
    console.print(table)
    if not options.quick:
        console.print(f"written to {save('convergence', _json(results))}")
        for name, runs in results.items():
            console.print(f"written to {plot(name, runs)}")
    return failed


def _table(steps: int, seeds: tuple[int, ...]) -> Table:
    table = Table(title=f"convergence: {steps} steps, {len(seeds)} seed{'s' * (len(seeds) > 1)}")
    for heading in ("model", "side", "precision", "last losses", "held out", "spread", "ms a step", ""):
        table.add_column(heading, justify="right" if heading not in ("model", "side", "precision", "") else "left")
    return table


def _figures(runs: list[Run]) -> tuple[str, ...]:
    last = statistics.fmean(statistics.fmean(run.losses[-50:]) for run in runs)
    held_out = [run.held_out for run in runs]
    spread = max(held_out) - min(held_out)
    step = statistics.median(run.milliseconds for run in runs)
    return f"{last:.4f}", f"{statistics.fmean(held_out):.4f}", f"{spread:.4f}", f"{step:.1f}"


def _json(results: Mapping[str, Runs]) -> dict[str, object]:
    return {
        "models": load("convergence").get("models", {})
        | {
            name: {
                f"{side} {precision}": [
                    run._replace(losses=[round(loss, 4) for loss in run.losses])._asdict() for run in found
                ]
                for (side, precision), found in runs.items()
            }
            for name, runs in results.items()
        }
    }


if __name__ == "__main__":
    raise SystemExit(main())
