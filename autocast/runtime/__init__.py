"""Run compiled models, and measure them: with TVM's runtime alone, without its compiler and without torch."""

from autocast.runtime import tvm_runtime as _tvm_runtime  # noqa: F401  # first: it keeps torch out
from autocast.runtime.executable import Executable, load
from autocast.runtime.latency_report import LatencyReport, OperatorTime
from autocast.runtime.memory import MemoryStep, MemoryTrace, trace
from autocast.runtime.profiling import profile

__all__ = [
    "Executable",
    "LatencyReport",
    "MemoryStep",
    "MemoryTrace",
    "OperatorTime",
    "load",
    "profile",
    "trace",
]
