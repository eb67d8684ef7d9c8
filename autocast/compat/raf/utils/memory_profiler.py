"""RAF's `raf.utils.memory_profiler`: the memory of each run, as the plan of its kernels has it."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from autocast import vm
from autocast.compat.names import check_device, named
from autocast.errors import InputError
from autocast.runtime.memory import MemoryTrace
from autocast.vm import Executable

__all__ = ["get_max_memory_info", "get_memory_trace", "reset", "start", "stop"]

_traces: list[MemoryTrace] = []
_is_started = False

__getattr__ = named(__name__, __all__)


def start() -> None:
    """Note the runs of `run_vm_model` and `run_vm_executor` from now on."""
    global _is_started
    _is_started = True


def stop() -> None:
    """Note nothing from now on."""
    global _is_started
    _is_started = False


def reset() -> None:
    """Forget what was noted."""
    _traces.clear()


def get_max_memory_info(device: str) -> dict[str, tvm.ir.Expr]:
    """The most memory of a run that was noted, in MiB, each number in its attribute `value`.

    "max_used" is what tensors and workspaces take at the worst kernel, "max_allocated" what the allocator has taken by
    then; parameters count in both.

    Raises
    ------
    InputError
        No run was noted.
    UnsupportedError
        The device is not the CPU.
    """
    traces = _noted(device)
    used = max(trace.peak_live + trace.inputs + trace.params + trace.constants for trace in traces)
    numbers = {"max_used": used, "max_allocated": max(trace.peak for trace in traces)}
    return {name: tirx.FloatImm("float64", number) for name, number in numbers.items()}


def get_memory_trace(device: str) -> str:
    """The runs that were noted, kernel by kernel, as a text; the errors are those of `get_max_memory_info`."""
    return "\n".join(map(str, _noted(device)))


def note(executable: Executable, args: Any) -> None:
    """Note a run with these inputs, if profiling has started."""
    if _is_started:
        _traces.append(vm.trace_memory(executable, "cpu", args))


def _noted(device: str) -> list[MemoryTrace]:
    check_device(device, "device")
    if not _traces:
        raise InputError(
            "memory_profiler: no run was noted; call start(), and then raf.testing.run_vm_model(model, 'cpu', args)"
        )
    return _traces
