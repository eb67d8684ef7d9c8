"""Inference and training on a GPU, by `device="cuda"`, beside torch eager, `torch.autocast` and `torch.compile`.

python -m benchmarks.accelerators [--quick] [--only BERT]

Each case has a process of its own, one after the other, the most important ones first: candidates alternate in rounds,
timed by the device's events. A training step is as in `benchmarks.training`; in float16 it has a dynamic loss scale.
Peaks are what torch's allocator holds at most, parameters and the optimizer's state among it. To compile a case takes
some two minutes; what was measured is kept in the JSON, and `--only` adds to it.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.candidates import Make
from benchmarks.sides import Call, Side, SideError
from benchmarks.timing import load, save
from benchmarks.training import LEARNING_RATE, MOMENTUM
from benchmarks.workload import bert, gpt2, resnet50

_MIB = 2**20

#: What part of the time of the best of torch's we may take.
_TARGET = 0.9

#: Rounds, and milliseconds of each candidate in one.
_ROUNDS, _SAMPLE = 7, 150.0

#: Kernels that only cast or copy, as Inductor and torch's eager mode name them.
_CASTS = re.compile(r"triton_\w+_fused_+_to_copy_\d+|.*copy_kernel.*")


@dataclass(frozen=True)
class Case:
    """A model to infer with or to train, in a dtype of 16 bits."""

    name: str
    make: Make
    dtype: str
    trains: bool

    def __str__(self) -> str:
        return f"{self.name}, {'training' if self.trains else 'inference'}, {self.dtype}"


def cases(quick: bool) -> Iterator[Case]:
    """Each model in both dtypes; `quick`: one layer in one."""
    yield Case("BERT-base 1 layer, 8 x 128", partial(bert, 1, 8, 128), "bfloat16", trains=True)
    if quick:
        return
    models: dict[str, Make] = {
        "BERT-base, 8 x 128": partial(bert, 12, 8, 128),
        "GPT-2 small, 8 x 512": partial(gpt2, 8, 512),
        "BERT-base, 32 x 128": partial(bert, 12, 32, 128),
        "ResNet-50, 32 images": partial(resnet50, 32),
    }
    for dtype in ("bfloat16", "float16"):
        for name, make in models.items():
            for trains in (False, True):
                yield Case(name, make, dtype, trains)
    yield Case(
        "BERT-base, 8 x 128, dropout", partial(_with_dropout, partial(bert, 12, 8, 128)), "bfloat16", trains=True
    )


def _with_dropout(make: Make) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    module, inputs = make()
    return module.train(), inputs


def _on_device(make: Make) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], torch.Tensor]:
    """A module, its inputs and labels for its logits."""
    module, inputs = make()
    module, inputs = module.cuda(), tuple(x.cuda() for x in inputs)
    with torch.no_grad():
        logits = module(*inputs)
    generator = torch.Generator().manual_seed(0)
    return module, inputs, torch.randint(0, logits.shape[-1], logits.shape[:-1], generator=generator).cuda()


def ours(case: Case) -> Call:
    """Inference, or a step, by this project."""
    import autocast
    from autocast import amp, training, vm

    module, inputs, labels = _on_device(case.make)
    model = autocast.from_torch(module.cpu(), tuple(x.cpu() for x in inputs))
    if not case.trains:
        executable = vm.compile(amp.autocast(model, dtype=case.dtype), "cuda")
        return lambda: executable(*inputs)
    options: Any = {"loss_scaling": training.DynamicLossScaling()} if case.dtype == "float16" else {}
    step = training.training_step(model, training.CrossEntropy(), training.SGD(momentum=MOMENTUM), **options)
    executable = vm.compile(amp.autocast(step, dtype=case.dtype), "cuda")
    arguments = *inputs, labels, torch.tensor(LEARNING_RATE, device="cuda")
    return lambda: executable(*arguments)


def torchs(case: Case, *, low: bool, compiled: str | None) -> Call:
    """The same by torch: under `torch.autocast` if `low`, and `torch.compile` in a mode; optimizers are fused."""
    module, inputs, labels = _on_device(case.make)
    dtype = getattr(torch, case.dtype)
    autocast = partial(torch.autocast, "cuda", dtype, enabled=low)
    if not case.trains:
        function: Any = torch.compile(module, mode=compiled) if compiled else module

        def infer() -> Any:
            torch.compiler.cudagraph_mark_step_begin()
            with torch.inference_mode(), autocast():
                return function(*inputs)

        return infer
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=low and case.dtype == "float16")

    def loss(*inputs: torch.Tensor) -> torch.Tensor:
        logits = module(*inputs)
        return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

    function = torch.compile(loss, mode=compiled) if compiled else loss

    def call() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        with autocast():
            value = function(*inputs)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return value

    return call


def candidates(case: Case) -> dict[str, Callable[[], Call]]:
    """What is measured of a case."""
    return {
        "ours": partial(ours, case),
        "eager, float32": partial(torchs, case, low=False, compiled=None),
        "autocast": partial(torchs, case, low=True, compiled=None),
        "autocast, compile": partial(torchs, case, low=True, compiled="default"),
        "autocast, compile with graphs": partial(torchs, case, low=True, compiled="reduce-overhead"),
    }


def _milliseconds(call: Call, calls: int) -> float:
    """Of one call, by the device's events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def _share_of_casts(call: Call) -> float:
    """The part of the kernels' time that is in kernels which only cast or copy."""
    with torch.profiler.profile() as profiler:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    kernels = [e for e in profiler.key_averages() if e.device_type != torch.autograd.DeviceType.CPU]
    total = sum(event.self_device_time_total for event in kernels)
    return sum(event.self_device_time_total for event in kernels if _CASTS.fullmatch(event.key)) / max(total, 1.0)


def _built(case: Case) -> tuple[dict[str, Call], dict[str, dict[str, Any]]]:
    """The candidates, compiled and warm; the peak, the error and the casts of each."""
    calls: dict[str, Call] = {}
    figures: dict[str, dict[str, Any]] = {}
    for name, build in candidates(case).items():
        torch.cuda.empty_cache()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call = build()
        first: Any = call()
        calls[name] = call
        figures[name] = {"result": first.detach().double().cpu()}
        for _ in range(4):
            call()
        torch.cuda.synchronize()
        figures[name]["peak MiB"] = (torch.cuda.max_memory_allocated() - held) / _MIB
        figures[name]["share of casts"] = _share_of_casts(call)
    expected = figures["eager, float32"].pop("result")
    for figure in figures.values():
        result = figure.pop("result", expected)
        figure["error"] = float((result - expected).norm() / expected.norm())
    return calls, figures


def measured(case: Case) -> dict[str, dict[str, Any]]:
    """The figures of each candidate: ms, samples, the peak, the error, the casts."""
    calls, figures = _built(case)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            count = max(3, min(50, round(_SAMPLE / _milliseconds(call, 3))))
            samples[name].append(_milliseconds(call, count))
    for name, values in samples.items():
        figures[name] |= {"ms": statistics.median(values), "samples": values}
    return figures


def _row(name: str, figures: dict[str, dict[str, Any]]) -> list[str]:
    times = {side: figure["ms"] for side, figure in figures.items()}
    best = min((side for side in times if side != "ours"), key=lambda side: times[side])
    compiled = times["autocast, compile"]
    cells = [f"{times[side]:.2f}" for side in times]
    casts = [f"{100 * figures[side]['share of casts']:.1f} %" for side in ("ours", "autocast", "autocast, compile")]
    return [name, *cells, f"{times['ours'] / compiled:.2f}", f"{times['ours'] / times[best]:.2f}", " / ".join(casts)]


def main() -> None:
    """Measure, print the table, write `benchmarks/results/accelerators.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one case")
    parser.add_argument("--only", default="", help="only cases whose name holds this text")
    options = parser.parse_args()
    chosen = [case for case in cases(options.quick) if options.only in str(case)]
    if not chosen:
        parser.error(f"no case's name holds {options.only!r}")
    if not torch.cuda.is_available():
        parser.error("torch has no CUDA device here")
    device = torch.cuda.get_device_name()
    table = Table(title=f"ms on one {device}, torch {torch.__version__}")
    for column in ("case", *candidates(chosen[0]), "of compile", f"of the best (target {_TARGET})", "casts"):
        table.add_column(column)
    found = load("accelerators").get("cases", {})
    for case in track(chosen, description="accelerators", transient=True):
        side = Side(str(case), threads=len(os.sched_getaffinity(0)))
        try:
            figures = found[str(case)] = side.compute(partial(measured, case))
        except SideError as error:
            print(error)
            continue
        finally:
            side.close()
        table.add_row(*_row(str(case), figures))
        save("accelerators", {"device": device, "torch": torch.__version__, "cases": found})
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
