"""Compile a module, keeping the two levels of it that analyses read."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm.ir.instrument import pass_instrument

from autocast import kernels, settings
from autocast.ir import all_bindings, place_of, relax_functions
from autocast.kernels.contexts import changed_context
from autocast.kernels.targets.cpu.instruction_sets import wanted_threads


@dataclass(frozen=True)
class CompiledProgram:
    """A compiled module.

    Attributes
    ----------
    planned : IRModule
        Relax functions after memory planning: every allocation and every release is a binding of its own.
    kernels : IRModule
        The PrimFuncs as code generation receives them: loops are final, and so are the buffers they allocate.
    code : tvm.relax.VMExecutable
        What `tvm.relax.VirtualMachine` runs.
    seconds : dict[str, float]
        Compile time by phase: "lower" (to planned kernels), "generate" (LLVM's IR), "load" (machine code).
        The last two run on several threads.
    places : dict[str, tuple[str, ...]]
        For each kernel the submodules that its calls come from, where that is known: one for each call.
    """

    planned: tvm.IRModule
    kernels: tvm.IRModule
    code: Any
    seconds: dict[str, float]
    places: dict[str, tuple[str, ...]]


@pass_instrument
class _Snapshots:
    """Remembers the modules as they were before the passes named in `before`: the parts of one, where it is split."""

    def __init__(self, *before: str) -> None:
        self.parts: dict[str, list[tvm.IRModule]] = {name: [] for name in before}

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        if info.name in self.parts:
            self.parts[info.name].append(mod)

    def whole(self, name: str) -> tvm.IRModule:
        """The module before pass `name`."""
        parts = self.parts[name]
        return tvm.IRModule({var: function for part in parts for var, function in part.functions.items()})


#: The pass that first hides allocations and releases in calls of the VM.
_PLAN_ENDS = "LowerRuntimeBuiltin"

#: The pass after which a PrimFunc's buffers and symbolic sizes are buried in calling code.
_KERNELS_END = "tirx.MakePackedAPI"


#: Programs of modules compiled before, the most recently used last: a Model made again has the same module, and other
#: parameters.
_programs: OrderedDict[Any, CompiledProgram] = OrderedDict()
_programs_lock = threading.Lock()

#: Each holds its machine code and its module, not parameters: a few MiB.
PROGRAMS_KEPT = 8


def build(mod: tvm.IRModule, target: tvm.target.Target, opt_level: int) -> CompiledProgram:
    """Compile `mod` for `target` under TVM's `PassContext(opt_level=opt_level)`.

    A module that is structurally equal to one of the last few is not compiled again, unless the caller's `PassContext`
    or a debugging setting asks to see, or change, how it is compiled.
    """
    if _is_watched():
        return _build(mod, target, opt_level)
    whole = tvm_ffi.StructuralKey(tvm.IRModule(mod.functions, attrs=mod.attrs))
    key = (whole, _places(mod), str(target), opt_level, settings.debug().poison)
    with _programs_lock:
        program = _programs.get(key)
        if program is None:
            program = _programs[key] = _build(mod, target, opt_level)
        _programs.move_to_end(key)
        if len(_programs) > PROGRAMS_KEPT:
            _programs.popitem(last=False)
    return program


def _places(mod: tvm.IRModule) -> tuple[str, ...]:
    """Where each binding comes from: equal modules of other submodules are other programs to who reads a profile."""
    bodies = [function.body for _, function in relax_functions(mod)]
    return tuple(place_of(binding.var).module for body in bodies for binding in all_bindings(body))


def _is_watched() -> bool:
    current = tvm.transform.PassContext.current()
    changed = (current.instruments, current.config, current.required_pass, current.disabled_pass)
    return any(len(part) for part in changed) or bool(settings.debug().level or settings.text("AUTOCAST_DUMP"))


def _build(mod: tvm.IRModule, target: tvm.target.Target, opt_level: int) -> CompiledProgram:
    snapshots = _Snapshots(_PLAN_ENDS, _KERNELS_END)
    # Instruments of the caller's may not be made for several threads.
    threads = 1 if len(tvm.transform.PassContext.current().instruments) else wanted_threads()
    times = [time.perf_counter()]
    with changed_context(opt_level=opt_level):
        plan = kernels.plan(mod, target)
    times.append(time.perf_counter())
    with changed_context(opt_level=opt_level, instruments=[snapshots]):
        code = kernels.finish(plan.planned, target, threads)
    times.append(time.perf_counter())
    kernels.load(code, threads)
    times.append(time.perf_counter())
    phases = zip(("lower", "generate", "load"), times, times[1:], strict=False)
    seconds = {phase: ended - started for phase, started, ended in phases}
    return CompiledProgram(snapshots.whole(_PLAN_ENDS), snapshots.whole(_KERNELS_END), code, seconds, plan.places)
