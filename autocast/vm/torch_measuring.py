"""Latency, operators and memory of a model on a device of torch's, by torch's own instruments."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from autocast.runtime.latency_report import LatencyReport, OperatorTime
from autocast.runtime.memory import MIB, MemoryStep, MemoryTrace
from autocast.runtime.profiling import MAX_INSTRUMENTED_RUNS, check_counts
from autocast.runtime.tensors import bytes_of
from autocast.vm.torch_devices import TorchExecutable

#: The name of the row that holds what torch does between operators.
TORCH_ROW = "(torch)"

#: The name of the one step of a memory trace: torch tells of a whole call.
CALL = "call"


def profile_on_torch(
    executable: TorchExecutable, inputs: Sequence[Any], *, warmup: int, number: int, repeat: int
) -> LatencyReport:
    """Measure the latency of calls, without moving the inputs, and in separate runs the time of operators.

    Accelerators are timed by their events, and their rows are kernels; the rows of CPUs are torch's operators.

    Raises
    ------
    InputError
        The inputs do not fit, or one of the counts is too small.
    """
    check_counts(warmup, number, repeat)
    executable.signature.bind(inputs)
    arguments = executable.arguments(inputs)
    for _ in range(warmup):
        executable.run(arguments)
    latencies = tuple(_milliseconds(executable, arguments, number) / number for _ in range(repeat))
    runs = min(number, MAX_INSTRUMENTED_RUNS)
    with _profiler(_activities(executable.torch_device)) as profiler:
        instrumented = _milliseconds(executable, arguments, runs) / runs
    rows = tuple(_rows(profiler, executable.torch_device.type != "cpu", runs, instrumented))
    return LatencyReport(
        latencies,
        tuple(sorted(rows, key=lambda row: -row.total)),
        instrumented,
        executable.device,
        warmup,
        number,
        repeat,
    )


def _profiler(activities: list[ProfilerActivity] | None, *, profile_memory: bool = False) -> torch.profiler.profile:
    # Of events that are not accumulated torch before 2.13 warns.
    return torch.profiler.profile(activities=activities, profile_memory=profile_memory, acc_events=True)


def _activities(device: torch.device) -> list[ProfilerActivity] | None:
    """What is watched: of a CPU it alone, although the machine may have a GPU; None: all that there is."""
    return [ProfilerActivity.CPU] if device.type == "cpu" else None


def _milliseconds(executable: TorchExecutable, arguments: tuple[Any, ...], runs: int) -> float:
    """What a number of runs takes."""
    kind = executable.torch_device.type
    if kind == "cpu":
        started = time.perf_counter()
        for _ in range(runs):
            executable.run(arguments)
        return (time.perf_counter() - started) * 1e3
    begin, end = (torch.Event(device=kind, enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(runs):
        executable.run(arguments)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def _rows(profiler: Any, is_accelerator: bool, runs: int, total: float) -> Iterator[OperatorTime]:
    spent = 0.0
    for event in profiler.key_averages():
        if is_accelerator == (event.device_type == torch.autograd.DeviceType.CPU):
            continue
        microseconds = event.self_device_time_total if is_accelerator else event.self_cpu_time_total
        each = microseconds / 1e3 / runs
        spent += each
        yield OperatorTime(event.key, event.count // runs, each, each / total, 0, None)
    rest = max(0.0, total - spent)
    yield OperatorTime(TORCH_ROW, 0, rest, rest / total, 0, None)


def trace_on_torch(executable: TorchExecutable, inputs: Sequence[Any]) -> MemoryTrace:
    """The memory that a call adds to what is held before it, as the device's allocator counts it: one step.

    Raises
    ------
    InputError
        The inputs do not fit.
    """
    executable.signature.bind(inputs)
    arguments = executable.arguments(inputs)
    executable.run(arguments, one_by_one=True)  # a compiler of torch's works in the first call
    device = executable.torch_device
    peak = _peak_of_cpu(executable, arguments) if device.type == "cpu" else _peak(executable, arguments)
    held = {tensor.untyped_storage().data_ptr(): tensor for tensor in executable.params}
    return MemoryTrace(
        steps=(MemoryStep(CALL, peak / MIB, 0.0, peak / MIB),),
        inputs=sum(map(bytes_of, arguments)) / MIB,
        params=sum(map(bytes_of, held.values())) / MIB,
        constants=0.0,
        unknown=0,
    )


def _peak(executable: TorchExecutable, arguments: tuple[Any, ...]) -> int:
    """Bytes, of an accelerator's allocator."""
    device = executable.torch_device
    torch.accelerator.synchronize()
    torch.accelerator.reset_peak_memory_stats(device)
    before = torch.accelerator.memory_allocated(device)
    executable.run(arguments, one_by_one=True)
    torch.accelerator.synchronize()
    return int(torch.accelerator.max_memory_allocated(device)) - int(before)


def _peak_of_cpu(executable: TorchExecutable, arguments: tuple[Any, ...]) -> int:
    """Bytes; the CPU's allocator keeps no count, but tells the profiler of each allocation and release."""
    with _profiler([ProfilerActivity.CPU], profile_memory=True) as profiler:
        outputs = executable.run(arguments)
    changes = sorted(_changes(profiler.profiler.kineto_results.experimental_event_tree()))
    del outputs
    return max(accumulate((size for _, size in changes), initial=0))


def _changes(events: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """When memory was taken or, less than 0, given back, and how many bytes of it."""
    for event in events:
        if event.tag == torch._C._profiler._EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.alloc_size
        yield from _changes(event.children)
