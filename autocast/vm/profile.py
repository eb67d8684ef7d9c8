"""Compile a model where that is still to be done, run it, and measure it."""

from __future__ import annotations

from typing import Any

import tvm

from autocast.model.value import Model
from autocast.runtime.executable import Executable
from autocast.runtime.latency_report import LatencyReport
from autocast.runtime.profiling import profile
from autocast.runtime.signature import Inputs
from autocast.vm.compile import executable_for
from autocast.vm.torch_devices import TorchExecutable


def run_vm_model(
    model: Model | tvm.IRModule | Executable, device: str = "cpu", args: Inputs = (), *, opt_level: int = 3
) -> Any:
    """Compile `model` for `device` if it is not yet, and run it on `args`: its outputs, of the kind of the inputs."""
    executable, inputs = executable_for(model, device, args, opt_level)
    return executable(*inputs)


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
        As `autocast.vm.compile` takes it: "cpu", "torch:cpu", "cuda". Compiled by Inductor where it is torch's; pass
        `compile(model, device, mode="eager")` for the other way.
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
    executable, inputs = executable_for(model, device, args, opt_level)
    if isinstance(executable, TorchExecutable):
        from autocast.vm.torch_measuring import profile_on_torch

        return profile_on_torch(executable, inputs, warmup=warmup, number=number, repeat=repeat)
    return profile(executable, inputs, warmup=warmup, number=number, repeat=repeat)
