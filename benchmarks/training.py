"""Training steps of whole models, float32 and mixed, beside torch eager and `torch.compile`; and their memory.

python -m benchmarks.training [--quick] [--only BERT] [--threads 1]

A step is the forward, the cross-entropy of the logits, the backward and SGD (learning rate 0.1, momentum 0.01), without
dropout, and with the statistics of each batch. Torch's optimizer is its fused one. Peaks are the bytes of all that a
step allocates and holds at once: not the parameters, the optimizer's state and the inputs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch._inductor.config
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.candidates import Make
from benchmarks.harness import Case, Outcome, run
from benchmarks.sides import Call, Side
from benchmarks.timing import load, save
from benchmarks.workload import TRAINED

LEARNING_RATE, MOMENTUM = 0.1, 0.01

#: What part of the time of torch eager, and of `torch.compile`, we may take: in mixed precision, in float32.
_TARGETS = {
    "BERT-base 1 layer": ((0.45, 0.45), (0.33, 0.5)),
    "ResNet-50": ((0.75, 0.75), (0.75, 0.75)),
    "": ((0.5, 0.5), (0.5, 0.5)),
}

_QUICK = "BERT-base 1 layer, 8 x 128"

_MIB = 2**20


def _made(make: Make) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], torch.Tensor]:
    """A module, its inputs, and a label for each row of its logits."""
    module, inputs = make()
    with torch.no_grad():
        logits = module(*inputs)
    return module, inputs, torch.randint(0, logits.shape[-1], logits.shape[:-1])


def _compiled(make: Make, low: bool) -> tuple[Any, tuple, dict[str, float]]:
    """Our executable, its inputs, and the figures of its compilation."""
    import autocast
    from autocast import amp, training, vm

    module, inputs, labels = _made(make)
    model = autocast.from_torch(module, inputs)
    started = time.perf_counter()
    step = training.training_step(model, training.CrossEntropy(), training.SGD(momentum=MOMENTUM))
    if low:
        step = amp.autocast(step)
    executable = vm.compile(step)
    seconds = time.perf_counter() - started
    arguments = (*inputs, labels, torch.tensor(LEARNING_RATE))
    peak = vm.trace_memory(executable, "cpu", arguments).intermediates
    return executable, arguments, {"compile seconds": seconds, "peak MiB": peak}


def ours(make: Make, *, low: bool) -> Call:
    """A step by this project."""
    executable, arguments, _ = _compiled(make, low)
    return lambda: executable(*arguments)


def torch_step(make: Make, *, low: bool, compiled: bool) -> Call:
    """A step by torch: forward and backward eager or compiled, the optimizer fused."""
    module, inputs, labels = _made(make)
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)

    def loss(*inputs: torch.Tensor) -> torch.Tensor:
        logits = module(*inputs)
        return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

    function = torch.compile(loss) if compiled else loss

    def call() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            value = function(*inputs)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return call


def our_figures(make: Make, *, low: bool) -> dict[str, float]:
    """The peak of intermediates, MiB, and the seconds from an imported model to an executable step."""
    return _compiled(make, low)[2]


def torch_figures(make: Make, *, low: bool, compiled: bool) -> dict[str, float]:
    """The most that a step of torch's holds at once of what it allocates, MiB; oneDNN's own scratch is not in it."""
    torch._inductor.config.force_disable_caches = True  # ours has none either
    call = torch_step(make, low=low, compiled=compiled)
    started = time.perf_counter()
    call()
    seconds = time.perf_counter() - started
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return {"peak MiB": peak / _MIB} | ({"compile seconds": seconds} if compiled else {})


def work(make: Make) -> tuple[float, float]:
    """Floating-point operations of a step's products, and the bytes that its optimizer has to move."""
    module, inputs, labels = _made(make)
    with FlopCounterMode(display=False) as counter:
        logits = module(*inputs)
        torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)).backward()
    parameters = sum(weight.nbytes for weight in module.parameters())
    return float(counter.get_total_flops()), 5.0 * parameters


def cases(quick: bool) -> Iterator[Case]:
    """Every model in both precisions."""
    for name, make in TRAINED.items():
        if quick and name != _QUICK:
            continue
        targets = next(targets for part, targets in _TARGETS.items() if part in name)
        flops, moved = work(make)
        for low, (eager, compiled) in zip((True, False), targets, strict=True):
            peers = {
                "torch eager": partial(torch_step, make, low=low, compiled=False),
                "torch compile": partial(torch_step, make, low=low, compiled=True),
            }
            yield Case(
                f"{name}, {_precision(low)}",
                partial(ours, make, low=low),
                peers,
                target=eager,
                targets={"torch compile": compiled},
                dtype="bfloat16" if low else "float32",
                flops=flops,
                bytes=moved,
            )


def _precision(low: bool) -> str:
    return "mixed" if low else "float32"


def figures(names: list[str], threads: int, quick: bool) -> dict[str, dict[str, dict[str, float]]]:
    """Peaks and compile times by case and candidate, each measured in a process of its own."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in names:
        model, _, precision = name.rpartition(", ")
        make, low = TRAINED[model], precision == _precision(True)
        functions: dict[str, Any] = {
            "ours": partial(our_figures, make, low=low),
            "torch eager": partial(torch_figures, make, low=low, compiled=False),
        }
        if not quick:
            functions["torch compile"] = partial(torch_figures, make, low=low, compiled=True)
        found[name] = {}
        for candidate, function in functions.items():
            side = Side(candidate, threads)
            try:
                found[name][candidate] = side.compute(function)
            finally:
                side.close()
    return found


def _table(found: dict[str, dict[str, dict[str, float]]]) -> Table:
    table = Table(title="peak of what a step allocates, MiB, and seconds to compile")
    candidates = ("ours", "torch eager", "torch compile")
    for heading in ("case", *candidates, "ours, s", "torch compile, s"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for name, by_candidate in found.items():
        peaks = [by_candidate.get(candidate, {}).get("peak MiB") for candidate in candidates]
        seconds = [by_candidate.get(candidate, {}).get("compile seconds") for candidate in ("ours", "torch compile")]
        table.add_row(
            name,
            *("" if peak is None else f"{peak:.0f}" for peak in peaks),
            *("" if second is None else f"{second:.1f}" for second in seconds),
        )
    return table


def _ratios(outcomes: list[Outcome]) -> dict[str, float]:
    """How many times faster our mixed precision is than our float32, by model."""
    ours_ms = {outcome.case.name: outcome.medians["ours"] for outcome in outcomes}
    return {
        model: ours_ms[f"{model}, float32"] / ours_ms[f"{model}, mixed"]
        for model in TRAINED
        if {f"{model}, float32", f"{model}, mixed"} <= ours_ms.keys()
    }


if __name__ == "__main__":
    outcomes = run("training", __doc__, cases, calls=2)
    is_quick = "--quick" in sys.argv
    found = figures([outcome.case.name for outcome in outcomes], len(os.sched_getaffinity(0)), is_quick)
    console = Console(width=120)
    console.print(_table(found))
    for model, ratio in _ratios(outcomes).items():
        console.print(f"{model}: mixed precision is {ratio:.2f} times as fast as float32")
    if not is_quick:
        earlier = {key: value for key, value in load("training").items() if key != "machine"}
        save("training", earlier | {"steps": earlier.get("steps", {}) | found})
