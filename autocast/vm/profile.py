"""Measure a compiled model: latency of whole calls, and, in separate runs, the time of each operator."""

from __future__ import annotations

import time
from typing import Any

import tvm

from autocast.errors import InputError
from autocast.kernels.poison import POISON
from autocast.model.value import Model
from autocast.vm.compile import compile
from autocast.vm.executable import Executable
from autocast.vm.flops import kernel_flops
from autocast.vm.latency_report import LatencyReport, OperatorTime
from autocast.vm.signature import Inputs
from autocast.vm.sizes import tensor_bytes

#: The name of the row that holds what the VM itself does between kernels: allocations, checks, releases.
VM_ROW = "(virtual machine)"

#: How the names of calls begin that are no kernels.
_OWN_CALLS = ("vm.builtin.", POISON)

#: Instrumented runs are for shares, not for latencies: a few are enough.
_MAX_INSTRUMENTED_RUNS = 5


def run_vm_model(
    model: Model | tvm.IRModule | Executable, device: str = "cpu", args: Inputs = (), *, opt_level: int = 3
) -> Any:
    """Compile `model` for `device` if it is not yet, and run it on `args`: its outputs, of the kind of the inputs."""
    executable = _executable(model, device, opt_level)
    return executable(*executable.signature.in_order(args))


def profile_vm_model(
    model: Model | tvm.IRModule | Executable,
    device: str = "cpu",
    args: Inputs = (),
    *,
    opt_level: int = 3,
    warmup: int = 5,
    number: int = 10,
    repeat: int = 10,
) -> LatencyReport:
    """Measure the latency of a model on `device`.

    Parameters
    ----------
    model : Model, IRModule or Executable
        What is called; compiled for `device` if it is not yet.
    device : str
        "cpu".
    args : sequence of tensors, or dict of str to tensor
        The inputs, in their order or by their names; a model's parameters are added by itself.
    opt_level : int
        0 to 3, as `autocast.vm.compile` takes it; an Executable is run as it is.
    warmup : int
        Runs before the measurement, 0 or more.
    number : int
        Runs that one latency is the mean of, 1 or more.
    repeat : int
        How many latencies are measured, 1 or more.

    Returns
    -------
    LatencyReport
        `report[0]` is the first latency in ms. Operators are timed in further runs, whose instrument slows them by
        about a microsecond a call.

    Raises
    ------
    InputError
        The inputs do not fit the model, or one of the counts is too small.
    """
    for name, count, least in (("warmup", warmup, 0), ("number", number, 1), ("repeat", repeat, 1)):
        if not isinstance(count, int) or count < least:
            raise InputError(f"profile_vm_model: {name} is {count!r}, expected an integer of {least} or more")
    executable = _executable(model, device, opt_level)
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
    operators, instrumented = _time_operators(executable, arguments, min(number, _MAX_INSTRUMENTED_RUNS))
    return LatencyReport(
        tuple(latencies),
        operators,
        instrumented,
        executable.device,
        warmup,
        number,
        repeat,
        notes=executable.slow_dtypes,
    )


def _executable(model: Model | tvm.IRModule | Executable, device: str, opt_level: int) -> Executable:
    return model if isinstance(model, Executable) else compile(model, device, opt_level=opt_level)


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
        tensors = [arg for arg in args if isinstance(arg, tvm.runtime.Tensor)]
        self.shapes.setdefault(name, []).append([tuple(int(size) for size in tensor.shape) for tensor in tensors])
        moved = sum(tensor_bytes(tensor.shape, tensor.dtype) for tensor in tensors)
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
    functions = {gv.name_hint: function for gv, function in executable.program.planned.functions.items()}
    kernels = {name: function for name, function in functions.items() if isinstance(function, tvm.tirx.PrimFunc)}
    rows = []
    for name, nanoseconds in instrument.nanoseconds.items():
        if not name.startswith(_OWN_CALLS) and (name in kernels or name not in functions):
            calls = instrument.shapes[name]
            counts = [kernel_flops(kernels[name], shapes) if name in kernels else None for shapes in calls]
            flops = None if None in counts else sum(counts)  # type: ignore[arg-type]
            spent = nanoseconds / runs
            modules = executable.program.places.get(name, ())
            rows.append(
                OperatorTime(name, len(calls), spent / 1e6, spent / total, instrument.bytes[name], flops, modules)
            )
    rest = max(0.0, total - sum(row.total for row in rows) * 1e6)
    steps = sum(len(calls) for name, calls in instrument.shapes.items() if name.startswith(_OWN_CALLS))
    rows.append(OperatorTime(VM_ROW, steps, rest / 1e6, rest / total, 0, None))
    return tuple(sorted(rows, key=lambda row: -row.total)), total / 1e6
