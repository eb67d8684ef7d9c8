"""From planned kernels to machine code: one kernel at a time, several at once, linked to one shared library."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import vm_build

from autocast.ir.failures import in_phase
from autocast.kernels.executables import Linked
from autocast.kernels.fallback.schedule import EXISTING
from autocast.kernels.linking import find_linker
from autocast.kernels.objects import Describe, machine_code, object_of
from autocast.runtime.library import Library

_T = TypeVar("_T")


@dataclass(frozen=True)
class Code:
    """Machine code of a module.

    Attributes
    ----------
    library : Library
        The functions of Relax, and the kernels that they call.
    facts : dict of str to object
        For each kernel what `describe` said of it.
    """

    library: Library
    facts: dict[str, Any]


def units_of(mod: tvm.IRModule) -> list[tvm.IRModule]:
    """The PrimFuncs of a module, which are compiled one by one, but for those that it came with: they may call each
    other, and are one unit.

    So a kernel's code does not depend on the kernels beside it.
    """
    functions = sorted(mod.functions.items(), key=lambda item: item[0].name_hint)
    functions = [(var, function) for var, function in functions if isinstance(function, tirx.PrimFunc)]
    bound = {var: function for var, function in functions if EXISTING in (function.attrs or {})}
    free = [{var: function} for var, function in functions if var not in bound]
    units = [unit for unit in (bound, *free) if unit] or [{}]  # the linker asks for one object
    return [tvm.IRModule(unit, attrs=mod.attrs, global_infos=mod.global_infos) for unit in units]


def generate(mod: tvm.IRModule, target: tvm.target.Target, threads: int, describe: Describe) -> Code:
    """Compile a module of PrimFuncs and finished Relax functions, under the caller's `PassContext`.

    Parameters
    ----------
    mod : IRModule
        As the virtual machine's code generator takes it: every Relax pass has run.
    target : Target
        An LLVM target.
    threads : int
        How many threads compile. Passes run in all of them, and so do the context's instruments; 1 is the caller's.
    describe : function of a PrimFunc
        Asked of each kernel when its loops are final.

    Warns
    -----
    CacheWarning
        There is no linker on this machine: code is made in memory.
    """
    context = tvm.transform.PassContext.current()
    builder = relax.ExecBuilder()
    with in_phase("generate"):
        rest = vm_build._vmcodegen(builder, mod)
    linker = find_linker()

    def compiled(unit: tvm.IRModule) -> tuple[Any, dict[str, Any]]:
        with context:
            return (machine_code if linker is None else object_of)(unit, target, describe)

    def checked(unit: tvm.IRModule) -> tuple[Any, dict[str, Any]]:
        with in_phase("generate", unit, compiled):
            return compiled(unit)

    results = _in_threads(checked, units_of(rest), threads)
    facts = {name: fact for _, described in results for name, fact in described.items()}
    with in_phase("load"):
        linked = Linked(mod, builder, target)
        if linker is not None:
            return Code(linked.of_objects([code for code, _ in results], linker), facts)
        library = linked.of_modules([code for code, _ in results])
        _in_threads(_load, library.module.imports, threads)
        return Code(library, facts)


def _load(library: tvm_ffi.Module) -> None:
    """Let LLVM make machine code in memory, which the first call would wait for."""
    # It makes all of it when it is first asked for a function, whether it has that function or not.
    with suppress(AttributeError):
        library.get_function("main")


def _in_threads(function: Callable[[Any], _T], values: Iterable[Any], threads: int) -> list[_T]:
    """`function` of each value, by this many threads; the first exception, in the order of the values, is raised."""
    if threads == 1:
        return [function(value) for value in values]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, values))
