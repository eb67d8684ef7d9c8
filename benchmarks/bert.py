"""BERT-base, one layer, masked-LM head, 8 x 128 tokens: inference, ours beside torch, in float32 and mixed precision.

python -m benchmarks.bert [--rounds 5] [--calls 3] [--compile]
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

import autocast
from autocast import amp, vm
from benchmarks import roofline
from benchmarks.timing import Timing, alternate, save
from benchmarks.workload import bert

#: Rest before each candidate, seconds: longer than any of the thread pools spins after its last job.
PAUSE = 0.25

Call = Callable[[], torch.Tensor]


def torch_candidates(module: torch.nn.Module, ids: torch.Tensor, with_compile: bool) -> dict[str, tuple[str, Call]]:
    """Name -> (dtype of the products' operands, call) for what torch offers."""

    @torch.inference_mode()
    def eager(model: Callable = module) -> torch.Tensor:
        return model(ids)

    @torch.inference_mode()
    def mixed(model: Callable = module) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(ids)

    candidates: dict[str, tuple[str, Call]] = {
        "torch eager": ("float32", eager),
        "torch.autocast": ("bfloat16", mixed),
    }
    if with_compile:
        from torch._inductor import config

        config.freezing = True
        full, low = torch.compile(module), torch.compile(module)
        candidates["torch.compile"] = ("float32", lambda: eager(full))
        candidates["torch.compile, autocast"] = ("bfloat16", lambda: mixed(low))
    return candidates


def our_candidates(module: torch.nn.Module, ids: torch.Tensor) -> tuple[dict[str, tuple[str, Call]], dict[str, float]]:
    """The same for this project, and the seconds that each step before the first iteration took."""
    seconds = {}

    def timed(step: str, work: Callable):
        start = time.perf_counter()
        result = work()
        seconds[step] = time.perf_counter() - start
        return result

    model = timed("import", lambda: autocast.from_torch(module, (ids,)))
    mixed = timed("autocast", lambda: amp.autocast(model))
    full = timed("compile, float32", lambda: vm.compile(model))
    low = timed("compile, AMP", lambda: vm.compile(mixed))
    candidates: dict[str, tuple[str, Call]] = {
        "ours": ("float32", lambda: full(ids)),
        "ours, AMP": ("bfloat16", lambda: low(ids)),
    }
    return candidates, seconds


def errors(module: torch.nn.Module, ids: torch.Tensor, candidates: dict[str, tuple[str, Call]]) -> dict[str, float]:
    """The relative Frobenius error of each candidate's output against torch in float64."""
    with torch.inference_mode():
        exact = copy.deepcopy(module).double()(ids)
    size = exact.norm()
    return {name: float((call().double() - exact).norm() / size) for name, (_, call) in candidates.items()}


def workload_limits(module: torch.nn.Module, ids: torch.Tensor) -> tuple[float, float]:
    """Floating-point operations of the products, and bytes that have to pass through memory in float32."""
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        logits = module(ids)
    embeddings = {id(p) for m in module.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    tied = {id(p) for m in module.modules() if isinstance(m, torch.nn.Linear) for p in m.parameters()}
    weights = sum(p.nbytes for p in module.parameters() if id(p) not in embeddings or id(p) in tied)
    return float(counter.get_total_flops()), float(weights + logits.nbytes)


def show(
    console: Console,
    timings: dict[str, Timing],
    dtypes: dict[str, str],
    error: dict[str, float],
    limits: roofline.Roofline,
    work: tuple[float, float],
) -> None:
    """Print one row for each candidate: time, speed beside torch, share of the machine's limit, error."""
    table = Table(
        "inference",
        "products",
        "ms, median",
        "ms, best",
        "torch eager / this",
        "GFLOP/s",
        "of limit",
        "error",
        title="BERT-base, 1 layer, 8 x 128, alternating",
    )
    reference = timings["torch eager"].median
    for name, timing in timings.items():
        least = limits.milliseconds(dtypes[name], *work)
        table.add_row(
            name,
            dtypes[name],
            f"{timing.median:.1f}",
            f"{timing.best:.1f}",
            f"{reference / timing.median:.2f} x",
            f"{work[0] / timing.median / 1e6:.0f}",
            f"{least / timing.median:.0%}",
            f"{error[name]:.1e}",
        )
    console.print(table)
    peaks = ", ".join(f"{dtype} {rate:.0f} GFLOP/s" for dtype, rate in limits.gflops.items())
    console.print(f"limits measured here: {peaks}, copy {limits.bandwidth:.0f} GB/s; work: {work[0] / 1e9:.1f} GFLOP")


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table and write `benchmarks/results/bert.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of alternating measurements")
    parser.add_argument("--calls", type=int, default=3, help="timed calls of each candidate in a round")
    parser.add_argument("--compile", action="store_true", help="torch.compile too (its first calls take a minute)")
    options = parser.parse_args(arguments)
    console = Console(width=120)

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    module, ids = bert(1)
    ours, seconds = our_candidates(module, ids)
    candidates = {**torch_candidates(module, ids, options.compile), **ours}
    error = errors(module, ids, candidates)
    calls = {name: call for name, (_, call) in candidates.items()}
    timings = alternate(calls, rounds=options.rounds, calls=options.calls, pause=PAUSE)
    limits, work = roofline.measure(), workload_limits(module, ids)
    dtypes = {name: dtype for name, (dtype, _) in candidates.items()}

    show(console, timings, dtypes, error, limits, work)
    console.print("before the first iteration: " + ", ".join(f"{k} {v:.1f} s" for k, v in seconds.items()))
    figures = {
        "timings": timings,
        "products": dtypes,
        "relative_error": error,
        "seconds_before_first_iteration": seconds,
        "limits": vars(limits),
        "flops": work[0],
        "bytes": work[1],
    }
    console.print(f"written to {save('bert', figures)}")


if __name__ == "__main__":
    main()
