"""Training in float32, bfloat16 and float16 beside torch: the same weights, batches and learning rates, three seeds.

python -m benchmarks.convergence [--quick] [--only GPT]

Every training has one thread, and as many run at a time as there are cores. The curves and the losses on held-out data
go to results/convergence.json and to docs/training_*.svg.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from typing import Any, NamedTuple
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

import autocast
from autocast.training.losses import CrossEntropy
from autocast.training.trainer import Trainer
from benchmarks.convergence_plots import plot
from benchmarks.convergence_workloads import CLIP_NORM, WORKLOADS, Workload
from benchmarks.timing import load, save

SIDES = ("ours", "torch")
PRECISIONS = ("float32", "bfloat16", "float16")
SEEDS = (0, 1, 2)
STEPS = 500

#: Steps that a point of a curve is the mean of, and points that the final loss is the mean of.
POINT = 10
_LAST = 5

#: Batches that losses on held-out data are the mean of.
_HELD_OUT = 20

#: How far the final loss in mixed precision may be from that in float32, relatively, in the mean over seeds.
TOLERANCE = 0.01


class Run(NamedTuple):
    """One training: its curve, the means of every `POINT` steps' losses, and the loss on held-out data."""

    losses: list[float]
    held_out: float

    @property
    def final(self) -> float:
        """The loss that training ended with."""
        return statistics.fmean(self.losses[-_LAST:])


#: The runs of a workload, one for each seed, by side and precision: ("ours", "bfloat16").
Runs = Mapping[tuple[str, str], list[Run]]


def train_ours(name: str, precision: str, steps: int, seeds: tuple[int, ...]) -> list[Run]:
    """A run for each seed; the step is compiled once."""
    workload = WORKLOADS[name]
    amp = None if precision == "float32" else precision
    model = autocast.from_torch(workload.module(seeds[0]), workload.batch(0, 0)[:1])
    trainer = Trainer(
        model,
        CrossEntropy(),
        workload.optimizer,
        learning_rate=workload.schedule(steps),
        amp=amp,
        clip_norm=CLIP_NORM,
    )
    start = trainer.state_dict()
    return [_run_ours(workload, trainer, start, seed, steps) for seed in seeds]


def _run_ours(workload: Workload, trainer: Trainer, start: Mapping[str, Any], seed: int, steps: int) -> Run:
    weights = {name: tensor.numpy() for name, tensor in workload.module(seed).state_dict().items()}
    tensors = {name: weights.get(name, tensor) for name, tensor in start["tensors"].items()}
    trainer.load_state_dict({**start, "tensors": tensors})
    losses = trainer.fit(lambda step: workload.batch(seed, step), steps, progress=False)
    held_out = trainer.evaluate(workload.batch(seed, step, train=False) for step in range(_HELD_OUT))
    return Run(_curve(losses), round(held_out, 5))


def train_torch(name: str, precision: str, steps: int, seeds: tuple[int, ...]) -> list[Run]:
    """The same in torch: eager, with its own autocast and gradient scaler. Its float16 is so slow on CPUs: one seed."""
    torch.set_num_threads(1)
    seeds = seeds[:1] if precision == "float16" else seeds
    return [_run_torch(WORKLOADS[name], precision, seed, steps) for seed in seeds]


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

    losses = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = schedule(step)
        loss = forward(workload.batch(seed, step))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP_NORM)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    module.eval()
    with torch.no_grad():
        held_out = [forward(workload.batch(seed, step, train=False)).item() for step in range(_HELD_OUT)]
    return Run(_curve(losses), round(statistics.fmean(held_out), 5))


def _curve(losses: list[float]) -> list[float]:
    return [round(statistics.fmean(losses[step : step + POINT]), 5) for step in range(0, len(losses), POINT)]


def difference(runs: Runs, side: str, precision: str) -> float:
    """How far the final loss is from the same side's in float32, relatively: the means over the seeds that both ran."""
    found = runs[side, precision]
    reference = runs[side, "float32"][: len(found)]
    return statistics.fmean(run.final for run in found) / statistics.fmean(run.final for run in reference) - 1


def main(arguments: list[str] | None = None) -> int:
    """Train everything, print the table, write the figures; the number of precisions that did not converge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="50 steps and one seed; nothing is written")
    parser.add_argument("--only", default="", help="only models whose name holds this text; other figures are kept")
    options = parser.parse_args(arguments)
    steps, seeds = (50, SEEDS[:1]) if options.quick else (STEPS, SEEDS)
    console = Console(width=120)
    results: dict[str, dict[tuple[str, str], list[Run]]] = {name: {} for name in WORKLOADS if options.only in name}
    started = time.perf_counter()
    for name, side, precision, runs in _trained(list(results), steps, seeds):
        results[name][side, precision] = runs
        losses = ", ".join(f"{run.final:.4f}" for run in runs)
        console.print(f"{time.perf_counter() - started:5.0f} s  {name}, {side}, {precision}: {losses}")
    console.print(_table(results, steps))
    if not options.quick:
        console.print(f"written to {save('convergence', _json(results))}")
        for name, found in results.items():
            console.print(f"written to {plot(name, found, POINT)}")
    return sum(
        abs(difference(found, "ours", precision)) > TOLERANCE
        for found in results.values()
        for precision in PRECISIONS[1:]
    )


def _trained(names: list[str], steps: int, seeds: tuple[int, ...]) -> Iterator[tuple[str, str, str, list[Run]]]:
    """(model, side, precision, runs), as they come."""
    functions = {"ours": train_ours, "torch": train_torch}
    with (
        # A thread pool reads these when its library is loaded.
        mock.patch.dict(os.environ, OMP_NUM_THREADS="1", AUTOCAST_NUM_THREADS="1"),
        ProcessPoolExecutor(len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn")) as pool,
    ):
        tasks = {
            pool.submit(functions[side], name, precision, steps, seeds): (name, side, precision)
            for name in names
            for precision in PRECISIONS
            for side in SIDES
        }
        for task in as_completed(tasks):
            yield *tasks[task], task.result()


def _table(results: Mapping[str, Runs], steps: int) -> Table:
    table = Table(title=f"losses after {steps} steps, means over seeds")
    for heading in ("model", "side", "precision", "final", "from float32", "spread", "held out"):
        table.add_column(heading, justify="left" if heading in ("model", "side", "precision") else "right")
    for name, runs in results.items():
        for side in SIDES:
            for precision in PRECISIONS:
                found = runs[side, precision]
                final = [run.final for run in found]
                held_out = statistics.fmean(run.held_out for run in found)
                table.add_row(
                    name,
                    side,
                    precision,
                    f"{statistics.fmean(final):.4f}",
                    f"{difference(runs, side, precision):+.2%}",
                    f"{max(final) - min(final):.4f}",
                    f"{held_out:.4f}",
                )
    return table


def _json(results: Mapping[str, Runs]) -> dict[str, object]:
    return {
        "models": load("convergence").get("models", {})
        | {
            name: {f"{side} {precision}": [run._asdict() for run in found] for (side, precision), found in runs.items()}
            for name, runs in results.items()
        }
    }


if __name__ == "__main__":
    raise SystemExit(main())
