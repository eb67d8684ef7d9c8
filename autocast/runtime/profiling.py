"""Measure a compiled model: latency of whole calls, and, in separate runs, the time of each operator."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import tvm_ffi

from autocast.errors import InputError
from autocast.messages import check_value, is_count
from autocast.runtime.executable import Executable
from autocast.runtime.latency_report import LatencyReport, OperatorTime
from autocast.runtime.poison import POISON
from autocast.runtime.program import Kernel
from autocast.runtime.signature import Inputs
from autocast.runtime.sizes import evaluate
from autocast.runtime.tensors import bytes_of

#: The name of the row that holds what the VM itself does between kernels: allocations, checks, releases.
VM_ROW = "(virtual machine)"

#: How the names of calls begin that are no kernels.
_OWN_CALLS = ("vm.builtin.", POISON)

#: Instrumented runs are for shares, not for latencies: a few are enough.
MAX_INSTRUMENTED_RUNS = 5


def profile(
    executable: Executable, args: Inputs = (), *, warmup: int = 5, number: int = 10, repeat: int = 10
) -> LatencyReport:
    """Measure the latency of an executable: see `autocast.profile_vm_model`, which compiles models first.

    Raises
    ------
    InputError
        The inputs do not fit, or one of the counts is too small.
    """
    check_counts(warmup, number, repeat)
    args = executable.signature.in_order(args)
    executable.signature.bind(args)
    arguments = executable.arguments(args)
    for _ in range(warmup):
        executable.run(arguments)
    latencies = []
    for _ in range(repeat):
        started = time.perf_counter()
        for _ in range(number):
            executable.run(arguments)
        latencies.append((time.perf_counter() - started) * 1e3 / number)
    operators, instrumented = _time_operators(executable, arguments, min(number, MAX_INSTRUMENTED_RUNS))
    return LatencyReport(
        tuple(latencies),
        operators,
        instrumented,
        executable.device,
        warmup,
        number,
        repeat,
        notes=executable.program.notes,
    )


def check_counts(warmup: int, number: int, repeat: int) -> None:
    """InputError unless one can run and measure so often."""
    for name, count, least in (("warmup", warmup, 0), ("number", number, 1), ("repeat", repeat, 1)):
        is_legal = partial(is_count, least=least)
        check_value("profile_vm_model", name, count, is_legal, InputError, f"an integer of {least} or more")


class _Instrument:
    """Times each call of the VM, and in its first run also notes the shapes of kernels' arguments."""

    def __init__(self) -> None:
        self.nanoseconds: dict[str, int] = {}
        self.shapes: dict[str, list[list[tuple[int, ...]]]] = {}
        self.bytes: dict[str, int] = {}
        self.first_run = True
        self._started: list[int] = []  # a stack: Relax functions call each other

    def __call__(self, function: Any, name: str, before: bool, result: Any, *args: Any) -> int:
        if before:
            if self.first_run:
                self._note(name, args)
            self._started.append(time.perf_counter_ns())
        else:
            elapsed = time.perf_counter_ns() - self._started.pop()
            self.nanoseconds[name] = self.nanoseconds.get(name, 0) + elapsed
        return 0

    def _note(self, name: str, args: tuple[Any, ...]) -> None:
        tensors = [arg for arg in args if isinstance(arg, tvm_ffi.Tensor)]
        self.shapes.setdefault(name, []).append([tuple(int(size) for size in tensor.shape) for tensor in tensors])
        moved = sum(bytes_of(tensor) for tensor in tensors)
        self.bytes[name] = self.bytes.get(name, 0) + moved


def _time_operators(
    executable: Executable, arguments: tuple[Any, ...], runs: int
) -> tuple[tuple[OperatorTime, ...], float]:
    instrument = _Instrument()
    with executable.instrumented(instrument):
        executable.run(arguments)  # notes shapes
        instrument.first_run = False
        instrument.nanoseconds.clear()
        started = time.perf_counter_ns()
        for _ in range(runs):
            executable.run(arguments)
        total = (time.perf_counter_ns() - started) / runs
    program = executable.program
    rows = []
    for name, nanoseconds in instrument.nanoseconds.items():
        if name.startswith(_OWN_CALLS) or name in program.functions:
            continue
        calls, kernel = instrument.shapes[name], program.kernels.get(name, Kernel((), 0))
        counts = [evaluate(kernel.flops, kernel.sizes(shapes)) for shapes in calls]
        flops = None if None in counts else sum(counts)  # type: ignore[arg-type]
        spent = nanoseconds / runs
        rows.append(
            OperatorTime(name, len(calls), spent / 1e6, spent / total, instrument.bytes[name], flops, kernel.modules)
        )
    rest = max(0.0, total - sum(row.total for row in rows) * 1e6)
    steps = sum(len(calls) for name, calls in instrument.shapes.items() if name.startswith(_OWN_CALLS))
    rows.append(OperatorTime(VM_ROW, steps, rest / 1e6, rest / total, 0, None))
    return tuple(sorted(rows, key=lambda row: -row.total)), total / 1e6
