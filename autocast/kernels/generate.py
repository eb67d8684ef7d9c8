"""From planned kernels to machine code: in parts of a few kernels, which several threads compile at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import tvm
from tvm import tirx

from autocast.ir.failures import in_phase
from autocast.kernels.fallback.schedule import EXISTING

_T = TypeVar("_T")

#: Kernels in a part: LLVM takes most of a second for them, and some 0.03 s more for each part. A thread takes the next
#: part when it is done with one. Parts do not depend on the number of threads, so machine code does not.
KERNELS_IN_PART = 8


def parts_of(mod: tvm.IRModule) -> list[tvm.IRModule]:
    """Split a module: Relax functions and PrimFuncs that may call each other come first, and all in one part.

    Kernels of this project call nothing, so each may be anywhere: neighbours by name, which take about as long as each
    other, go to different parts.
    """
    free: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc] = {}
    bound: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc] = {}
    for var, function in sorted(mod.functions.items(), key=lambda item: item[0].name_hint):
        is_free = isinstance(function, tirx.PrimFunc) and EXISTING not in (function.attrs or {})
        (free if is_free else bound)[var] = function
    count = -(-len(free) // KERNELS_IN_PART) or 1
    kernels = [dict(list(free.items())[start::count]) for start in range(count)]
    return [
        tvm.IRModule(part, attrs=mod.attrs, global_infos=mod.global_infos)
        for part in ({**bound, **kernels[0]}, *kernels[1:])
    ]


def generate(mod: tvm.IRModule, target: tvm.target.Target, threads: int) -> tvm.runtime.Executable:
    """Compile a module of PrimFuncs and finished Relax functions, under the caller's `PassContext`.

    Parameters
    ----------
    mod : IRModule
        As the virtual machine's code generator takes it: every Relax pass has run.
    target : Target
        An LLVM target.
    threads : int
        How many threads compile. Passes run in all of them, and so do the context's instruments; 1 is the caller's.
    """
    context = tvm.transform.PassContext.current()

    def compiled(part: tvm.IRModule) -> tvm.runtime.Executable:
        with context:
            return tvm.compile(part, target, relax_pipeline=None)

    def checked(part: tvm.IRModule) -> tvm.runtime.Executable:
        with in_phase("generate", part, compiled):
            return compiled(part)

    executable, *others = _in_threads(checked, parts_of(mod), threads)
    for other in others:
        executable.mod.import_module(other.mod)
    return executable


def load(executable: tvm.runtime.Executable, threads: int) -> None:
    """Let LLVM make machine code of what `generate` returned, which the first call would wait for."""

    def loaded(library: tvm.runtime.Module) -> None:
        # It makes all of its machine code when it is first asked for a function, whether it has that function or not.
        with suppress(AttributeError):
            library.get_function("main")

    with in_phase("load"):
        _in_threads(loaded, executable.mod.imports, threads)


def _in_threads(function: Callable[[Any], _T], values: Iterable[Any], threads: int) -> list[_T]:
    """`function` of each value, by this many threads; the first exception, in the order of the values, is raised."""
    if threads == 1:
        return [function(value) for value in values]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, values))
