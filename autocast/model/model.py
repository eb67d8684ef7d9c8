"""Figures about a model, at RAF's path: `from autocast.model.model import get_peak_memory`."""

from autocast.vm.flops import calc_model_gflops
from autocast.vm.memory import get_param_size, get_peak_memory, trace_memory

__all__ = ["calc_model_gflops", "get_param_size", "get_peak_memory", "trace_memory"]
