"""Compile, run and measure models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import tvm

from autocast import vm
from autocast.compat.names import check_device, measured_device
from autocast.compat.raf.handle import FUSION, FrameworkModel, Record, handle_of, model_of, run
from autocast.compat.raf.testing.common import check
from autocast.compat.raf.utils import memory_profiler, profiler
from autocast.errors import InputError, UnsupportedError
from autocast.messages import nearest
from autocast.model import Model
from autocast.vm import Executable, LatencyReport

#: RAF's options, and the values of those that mean nothing here.
_OPTIONS = {"stream_schedule_policy": "sequential", "anf_only": False, "sch_file": None}


def get_vm_executor(
    mod: FrameworkModel | Model, device: str, opt_level: int = 3, disable_fusion: bool = False, **options: Any
) -> Executable:
    """The compiled model, to be called with inputs: parameters are bound to it, and it keeps those that it updates.

    Parameters
    ----------
    mod : FrameworkModel or Model
        `record.mod`, or a model.
    device : str
        "cpu".
    opt_level : int
        0 to 3.
    disable_fusion : bool
        Whether TVM fuses no operators: what one kernel of ours computes stays one.
    **options
        `pass_seq` is applied to the module; others have the one value that means something here.

    Raises
    ------
    UnsupportedError
        Another device, or an option that means nothing here.
    """
    return _with_passes(mod, options).executable(device, opt_level, disable_fusion)


def run_vm_executor(executor: Executable, record: Record, args: Any, device: str = "cpu") -> Any:
    """The results of an executor; where it updates parameters a tuple, of which the loss is the first."""
    check_device(device, "device")
    memory_profiler.note(executor, args)
    with profiler.around(executor):
        return run(executor, args)


def run_vm_model(
    model: FrameworkModel | Model,
    device: str,
    args: Any,
    opt_level: int = 3,
    disable_fusion: bool = False,
    **options: Any,
) -> Any:
    """Run a model on inputs in their order or by name; a FrameworkModel keeps the parameters that it updates."""
    executor = get_vm_executor(model, device, opt_level, disable_fusion, **options)
    return run_vm_executor(executor, Record(handle_of(model)), args, device)


def get_vm_profiler(
    mod: FrameworkModel | Model,
    device: str,
    opt_level: int = 3,
    disable_fusion: bool = False,
    warmup: int = 5,
    number: int = 10,
    repeat: int = 10,
    **options: Any,
) -> Any:
    """What measures the model's latency on the inputs that it is called with."""
    return lambda *args: profile_vm_model(
        mod, device, args, opt_level, disable_fusion, warmup, number, repeat, **options
    )


def profile_vm_model(
    model: FrameworkModel | Model,
    device: str,
    args: Any,
    opt_level: int = 3,
    disable_fusion: bool = False,
    warmup: int = 5,
    number: int = 10,
    repeat: int = 10,
    **options: Any,
) -> LatencyReport:
    """The latencies of a model in ms: a sequence of `repeat` means over `number` runs each.

    `args` are inputs in their order, or a dictionary by their names. The model's parameters stay as they are; the other
    arguments are those of `get_vm_executor`, and the errors `autocast.profile_vm_model`'s. `device` may be one of
    torch's, too: "torch:cpu", "cuda".
    """
    name, value = measured_device(device), _with_passes(model, options).value
    if name != "cpu":
        return vm.profile_vm_model(value, name, args, opt_level=opt_level, warmup=warmup, number=number, repeat=repeat)
    with tvm.transform.PassContext(disabled_pass=list(FUSION) if disable_fusion else []):
        executable = vm.compile(value.replace() if disable_fusion else value, opt_level=opt_level)
    return vm.profile_vm_model(executable, "cpu", args, warmup=warmup, number=number, repeat=repeat)


def run_model(model: FrameworkModel | Model, args: Any, device: str = "cpu", check_result: bool = True) -> Any:
    """Run a model at the highest and at the lowest level of optimization; compare the results if it updates nothing.

    RAF compares its interpreter with its virtual machine.
    """
    value = model_of(model)
    result = run_vm_model(value, device, args)
    if check_result and not value.updated:
        again = run_vm_model(value, device, args, 0)
        for first, second in zip(_fields(result), _fields(again), strict=True):
            check(first, second)
    return result


def get_param(model: FrameworkModel | Model, name: str) -> torch.Tensor:
    """A parameter by its name; AttributeError, with the nearest names, where there is none."""
    state = handle_of(model).state()
    if name not in state:
        raise AttributeError(f"get_param: no parameter {name!r}; nearest: {nearest(name, state)}")
    return state[name]


def _with_passes(model: FrameworkModel | Model, options: Mapping[str, Any]) -> FrameworkModel:
    """A handle onto the model after `pass_seq`; UnsupportedError for what other options cannot mean."""
    for name, value in options.items():
        if name != "pass_seq" and name not in _OPTIONS:
            raise InputError(
                f"options: got {name!r}, expected some of pass_seq, {', '.join(_OPTIONS)}; nearest: "
                f"{nearest(name, ['pass_seq', *_OPTIONS])}"
            )
        if name in _OPTIONS and value not in (_OPTIONS[name], None):
            raise UnsupportedError(
                f"options: {name} is {value!r}, expected {_OPTIONS[name]!r}: kernels run one after another, in an "
                "order that is chosen for memory; try without it"
            )
    if options.get("pass_seq") is None:
        return handle_of(model)
    value = model_of(model)
    return FrameworkModel(value.replace(mod=options["pass_seq"](value.mod)))


def _fields(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)
