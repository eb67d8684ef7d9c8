"""Compile a module, keeping the two levels of it that analyses read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.ir.instrument import pass_instrument

from autocast import kernels


@dataclass(frozen=True)
class Program:
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
        Compile time by phase: "lower" (to planned kernels), "generate" (machine code).
    """

    planned: tvm.IRModule
    kernels: tvm.IRModule
    code: Any
    seconds: dict[str, float]


@pass_instrument
class _Snapshots:
    """Remembers the module as it was before the passes named in `before`, the last time each ran."""

    def __init__(self, *before: str) -> None:
        self.mods = {name: tvm.IRModule({}) for name in before}

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        if info.name in self.mods:
            self.mods[info.name] = mod


#: The pass that first hides allocations and releases in calls of the VM.
_PLAN_ENDS = "LowerRuntimeBuiltin"

#: The pass after which a PrimFunc's buffers and symbolic sizes are buried in calling code.
_KERNELS_END = "tirx.MakePackedAPI"


def build(mod: tvm.IRModule, target: tvm.target.Target, opt_level: int) -> Program:
    """Compile `mod` for `target` under TVM's `PassContext(opt_level=opt_level)`."""
    snapshots = _Snapshots(_PLAN_ENDS, _KERNELS_END)
    started = time.perf_counter()
    with _pass_context(opt_level, []):
        planned = kernels.plan(mod, target).planned
    lowered = time.perf_counter()
    with _pass_context(opt_level, [snapshots]):
        code = kernels.finish(planned, target)
    seconds = {"lower": lowered - started, "generate": time.perf_counter() - lowered}
    return Program(snapshots.mods[_PLAN_ENDS], snapshots.mods[_KERNELS_END], code, seconds)


def _pass_context(opt_level: int, instruments: list[Any]) -> tvm.transform.PassContext:
    """The caller's context with another level and more instruments."""
    current = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        opt_level=opt_level,
        required_pass=list(current.required_pass),
        disabled_pass=list(current.disabled_pass),
        instruments=[*current.instruments, *instruments],
        config=dict(current.config),
    )
