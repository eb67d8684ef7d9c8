"""What the runtime costs: calls, kernels and parallel regions, pages and torch's threads; and how long models compile.

python -m benchmarks.runtime [--quick]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tvm import relax
from tvm.script import ir as I
from tvm.script import tirx as T

import autocast
from autocast import amp, vm
from autocast.model import Model
from benchmarks.timing import save
from benchmarks.workload import bert, resnet50

#: Kernels in a chain: enough that a call's own cost is small beside theirs.
KERNELS = 200


@dataclass(frozen=True)
class Figure:
    """One measured number, its unit, and the largest that is good enough (None: no target)."""

    name: str
    value: float
    unit: str
    target: float | None = None

    @property
    def met(self) -> str:
        """ "met" or "missed"; empty without a target."""
        return "" if self.target is None else "met" if self.value <= self.target else "missed"


@I.ir_module
class Steps:
    """Add 1 to a vector in each of two iterations, on one thread or on two."""

    @T.prim_func(private=True, s_tir=True)
    def alone(
        x: T.Buffer((T.int64(2), T.int64(16)), "float32"),  # type: ignore[valid-type]
        y: T.Buffer((T.int64(2), T.int64(16)), "float32"),  # type: ignore[valid-type]
    ):
        T.func_attr({"tirx.noalias": True, "op_pattern": 8, "autocast.scheduled": True})
        for i, j in T.grid(2, 16):
            with T.sblock("add"):
                a, b = T.axis.remap("SS", [i, j])
                y[a, b] = x[a, b] + T.float32(1)

    @T.prim_func(private=True, s_tir=True)
    def shared(
        x: T.Buffer((T.int64(2), T.int64(16)), "float32"),  # type: ignore[valid-type]
        y: T.Buffer((T.int64(2), T.int64(16)), "float32"),  # type: ignore[valid-type]
    ):
        T.func_attr({"tirx.noalias": True, "op_pattern": 8, "autocast.scheduled": True})
        for i in T.parallel(2):
            for j in range(16):
                with T.sblock("add"):
                    a, b = T.axis.remap("SS", [i, j])
                    y[a, b] = x[a, b] + T.float32(1)


def chain(kernels: int, step: str) -> Model:
    """A model of this many calls of `Steps.alone` or `Steps.shared`."""
    steps: Any = Steps
    builder = relax.BlockBuilder(steps)
    ty = relax.TensorType((2, 16), "float32")
    x = value = relax.Var("x", ty)
    function = steps.get_global_var(step)
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            for _ in range(kernels):
                value = builder.emit(relax.call_tir(function, [value], ty))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return Model(builder.get())


def microseconds(call: Callable[[], object], count: int, pause: float = 0.0) -> float:
    """The median of `count` calls, each after `pause` seconds of rest."""
    samples = []
    for _ in range(count):
        if pause:
            time.sleep(pause)
        started = time.perf_counter()
        call()
        samples.append((time.perf_counter() - started) * 1e6)
    return statistics.median(samples)


def overheads(count: int) -> list[Figure]:
    """What surrounds the arithmetic."""
    x = torch.zeros(2, 16)
    one, serial, parallel = (
        vm.compile(chain(*arguments)) for arguments in ((1, "alone"), (KERNELS, "alone"), (KERNELS, "shared"))
    )
    arguments = one.arguments([x])
    call, run = microseconds(lambda: one(x), 50 * count), microseconds(lambda: one.run(arguments), 50 * count)
    each = (microseconds(lambda: serial.run(arguments), count) - run) / (KERNELS - 1)
    region = (microseconds(lambda: parallel.run(arguments), count) - run) / (KERNELS - 1)
    woken = vm.compile(chain(1, "shared"))
    return [
        Figure("a call with torch tensors, one kernel", call, "us"),
        Figure("the virtual machine's part of it", run, "us"),
        Figure("one more kernel", each, "us"),
        Figure("the same, split among the threads", region, "us"),
        Figure("waking the threads after 10 ms of rest", microseconds(lambda: woken.run(arguments), 20, 0.01), "us"),
    ]


def steady_state(executable: vm.Executable, inputs: tuple[torch.Tensor, ...], count: int) -> list[Figure]:
    """Pages faulted in by a call that follows others, and what torch's threads cost it."""
    kept = None
    for _ in range(3):
        kept = executable(*inputs)  # as callers do, the last output is held while the next is computed
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    alone = []
    for _ in range(count):
        started = time.perf_counter()
        kept = executable(*inputs)
        alone.append((time.perf_counter() - started) * 1e3)
    faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / count
    del kept
    after_torch, square = [], torch.randn(1024, 1024)
    for _ in range(count):
        square @ square
        started = time.perf_counter()
        executable(*inputs)
        after_torch.append((time.perf_counter() - started) * 1e3)
    ratio = statistics.median(after_torch) / statistics.median(alone)
    return [
        Figure("BERT-base, one layer, 1 x 128, AMP", statistics.median(alone), "ms"),
        Figure("pages faulted in by a call", faults, "", 1.0),
        Figure("a call right after one of torch's operators", ratio, "x", 1.2),
    ]


def compilation(quick: bool) -> list[Figure]:
    """Seconds from a Model to an executable, its parameters packed."""
    models: list[tuple[str, Any, float | None]] = [("BERT-base, one layer", bert(1), 5.0)]
    if not quick:
        models += [("BERT-base, 12 layers", bert(12), 15.0), ("ResNet-50", resnet50(4), None)]
    figures = []
    for name, (module, inputs), target in models:
        model = autocast.from_torch(module, inputs)
        for precision, subject in (("float32", model), ("AMP", amp.autocast(model))):
            started = time.perf_counter()
            vm.compile(subject)
            figures.append(Figure(f"compile {name}, {precision}", time.perf_counter() - started, "s", target))
    return figures


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table and write `benchmarks/results/runtime.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer calls, and one model only")
    options = parser.parse_args(arguments)
    count = 20 if options.quick else 100
    module, inputs = bert(1, batch=1)
    small = vm.compile(amp.autocast(autocast.from_torch(module, inputs)))
    figures = [*overheads(count), *steady_state(small, inputs, count), *compilation(options.quick)]
    table = Table("", "measured", "target", "", title="runtime")
    for figure in figures:
        target = "" if figure.target is None else f"{figure.target:g} {figure.unit}"
        table.add_row(figure.name, f"{figure.value:.2f} {figure.unit}", target, figure.met)
    console = Console(width=120)
    console.print(table)
    if not options.quick:
        results = [asdict(figure) | {"met": figure.met} for figure in figures]
        console.print(f"written to {save('runtime', {'figures': results})}")


if __name__ == "__main__":
    main()
