"""RAF's `raf.model.model`: the sizes of parameters, the memory and the operations of a model."""

from __future__ import annotations

from math import prod
from typing import Any

from autocast import vm
from autocast.compat.names import check_device, measured_device, named
from autocast.compat.raf.handle import FrameworkModel, model_of
from autocast.ir import FLOATS
from autocast.model import Model
from autocast.runtime.sizes import tensor_bytes

__all__ = ["FrameworkModel", "calc_model_gflops", "get_param_size", "get_peak_memory", "trace_memory"]


__getattr__ = named(__name__, __all__)


def get_param_size(model: FrameworkModel | Model, mbs: bool = False) -> float:
    """How many numbers a model learns, or their size in MiB; in inference mode too.

    What an optimizer keeps for them, under names such as "momentum/0.weight", does not count.
    """
    value = model_of(model)
    names = [name for name in value.params if name not in value.frozen and "/" not in name and name != "loss_scale"]
    learned = [tensor for name, tensor in value.params.items() if name in names and _is_float(tensor)]
    if mbs:
        return sum(tensor_bytes(tensor.shape, tensor.dtype) for tensor in learned) / 2**20
    return float(sum(prod(map(int, tensor.shape)) for tensor in learned))


def trace_memory(
    model: FrameworkModel | Model, device: str, args: Any, include_param: bool = True
) -> list[tuple[str, float]]:
    """The kernels in the order of execution, each with the memory in MiB that is in use while it runs.

    That is inputs, what something still needs, and workspace; and, with `include_param`, parameters and constants.
    """
    trace = vm.trace_memory(model_of(model), measured_device(device), args)
    always = trace.inputs + (trace.params + trace.constants if include_param else 0.0)
    return [(step.name, always + step.live + step.workspace) for step in trace]


def get_peak_memory(model: FrameworkModel | Model, device: str, args: Any, include_param: bool = True) -> float:
    """The peak memory of one call in MiB, with what the allocator keeps for later kernels."""
    return vm.get_peak_memory(model_of(model), measured_device(device), args, include_param)


def calc_model_gflops(model: FrameworkModel | Model, device: str, args: Any) -> float:
    """Billions of floating-point operations of one call, in products, convolutions and attention."""
    check_device(device, "device")
    return vm.calc_model_gflops(model_of(model), "cpu", args)


def _is_float(tensor: Any) -> bool:
    return str(tensor.dtype) in FLOATS
