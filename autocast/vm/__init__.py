"""Compile, run and profile models."""

from autocast.runtime import Executable, LatencyReport, MemoryStep, MemoryTrace, OperatorTime
from autocast.vm.compile import DEVICES, compile
from autocast.vm.export import export
from autocast.vm.flops import calc_model_gflops
from autocast.vm.memory import get_param_size, get_peak_memory, trace_memory
from autocast.vm.profile import profile_vm_model, run_vm_model

__all__ = [
    "DEVICES",
    "Executable",
    "LatencyReport",
    "MemoryStep",
    "MemoryTrace",
    "OperatorTime",
    "calc_model_gflops",
    "compile",
    "export",
    "get_param_size",
    "get_peak_memory",
    "profile_vm_model",
    "run_vm_model",
    "trace_memory",
]
