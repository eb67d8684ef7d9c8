"""Compiles kernels, and modules, as programs do: tests run the code that users run."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import VMExecutable

from autocast.kernels import detect_target, finish, plan
from autocast.kernels.contexts import changed_context
from autocast.kernels.objects import machine_code
from autocast.vm.describe import describe_kernel
from autocast.vm.program_cache import makers
from tests.kernels.targets.cpu.emulation import as_generated

#: What programs are compiled with that ask for nothing else: equal kernels are then those of `vm.compile`.
_OPT_LEVEL = 3


def compile_kernels(kernels: Mapping[str, tirx.PrimFunc], target: tvm.target.Target) -> tvm_ffi.Module:
    """Machine code of kernels by their names: LLVM's module."""
    with changed_context(opt_level=_OPT_LEVEL, disabled=("s_tir.CompactBufferAllocation",)):
        code, _ = machine_code(tvm.IRModule(dict(kernels)), target, lambda kernel: None)
    return code


def assembly_of(kernels: Mapping[str, tirx.PrimFunc], target: tvm.target.Target) -> str:
    """The machine code of kernels, to read."""
    with as_generated():
        return compile_kernels(kernels, target).inspect_source("asm")


def machine_of(mod: tvm.IRModule, target: tvm.target.Target | None = None) -> relax.VirtualMachine:
    """Runs a module, built for this machine; kernels that some test compiled before are not compiled again.

    They are described as programs describe them, which find them too.
    """
    target = target or detect_target()
    with changed_context(opt_level=_OPT_LEVEL):
        planned = plan(mod, target).planned
        code = finish(planned, target, describe=lambda one: describe_kernel(one).to_json(), makers=makers).code
    return relax.VirtualMachine(VMExecutable(code.library.module), tvm.cpu())
