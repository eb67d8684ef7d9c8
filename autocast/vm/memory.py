"""How much memory a call of a model takes: see `autocast.runtime.memory`."""

from __future__ import annotations

import tvm

from autocast.errors import InputError
from autocast.messages import check_kind
from autocast.model.value import Model
from autocast.runtime.executable import Executable
from autocast.runtime.memory import MIB, MemoryTrace, trace
from autocast.runtime.signature import Inputs
from autocast.runtime.tensors import bytes_of
from autocast.vm.checks import A_MODEL
from autocast.vm.compile import executable_for
from autocast.vm.torch_devices import TorchExecutable


def trace_memory(model: Model | tvm.IRModule | Executable, device: str = "cpu", args: Inputs = ()) -> MemoryTrace:
    """The memory of one call with inputs `args`, kernel by kernel.

    The first call of a process is described: from an empty allocator, on a thread pool of the configured size. Later
    calls find the reserved blocks again, and take more only if the caller still holds earlier outputs.

    Parameters
    ----------
    model : Model, IRModule or Executable
        What is called; compiled for `device` if it is not yet.
    device : str
        As `autocast.vm.compile` takes it. On torch's devices the trace has one step, the whole call, as the device's
        allocator counts it.
    args : sequence of tensors, or dict of str to tensor
        The inputs, in their order or by their names; only their shapes matter.

    Returns
    -------
    MemoryTrace
        Prints as a table.
    """
    executable, inputs = executable_for(model, device, args)
    if isinstance(executable, TorchExecutable):
        from autocast.vm.torch_measuring import trace_on_torch

        return trace_on_torch(executable, inputs)
    return trace(executable, inputs)


def get_peak_memory(
    model: Model | tvm.IRModule | Executable,
    device: str = "cpu",
    args: Inputs = (),
    include_param: bool = True,
) -> float:
    """The peak memory of one call in MiB: inputs, intermediates, outputs, kernels' workspaces, and the parameters.

    Parameters
    ----------
    model, device, args
        As `trace_memory` takes them.
    include_param : bool
        Whether parameters and constants count.
    """
    trace = trace_memory(model, device, args)
    return trace.peak - (0.0 if include_param else trace.params + trace.constants)


def get_param_size(model: Model | Executable) -> float:
    """The size of the model's parameters in MiB; tied parameters count once."""
    check_kind("get_param_size", model, Model | Executable, InputError, f"an Executable, or {A_MODEL}")
    params = model.params.values() if isinstance(model, Model) else model.params
    return sum(map(bytes_of, params)) / MIB
