"""From planned kernels to machine code: one kernel at a time, several at once, linked to one shared library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import vm_build

from autocast.ir.failures import in_phase
from autocast.kernels.executables import Linked
from autocast.kernels.fallback.schedule import EXISTING
from autocast.kernels.kernel_cache import KernelCache, Makers, kernel_cache
from autocast.kernels.linking import find_linker
from autocast.kernels.objects import Describe, machine_code, object_of, renamed
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
    origins : dict of str to int
        How many kernels come from where: "compiled", "the user's cache", "the system's cache".
    """

    library: Library
    facts: dict[str, Any]
    origins: dict[str, int]


class _Unit(NamedTuple):
    """A unit that was compiled, or found: its code, what there is to know of it, the kernel's name in machine code."""

    code: Any
    facts: dict[str, Any]
    names: dict[str, str]
    origin: str = "compiled"


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


def generate(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    threads: int,
    describe: Describe,
    makers: Makers | None = None,
) -> Code:
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
        Asked of each kernel when its loops are final: something that JSON can say.
    makers : function, optional
        Look for kernels in the cache, and keep them there; it answers what decides about their code and description
        beside what is seen here. None: compile all.

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

    cache = None if linker is None else kernel_cache(target, makers)

    def compiled(unit: tvm.IRModule) -> _Unit:
        with context:
            if linker is None:
                return _Unit(*machine_code(unit, target, describe), {})
            if cache is not None and not _is_bound(unit) and (found := _cached(unit, target, describe, cache)):
                return found
            return _Unit(*object_of(unit, target, describe), {})

    def checked(unit: tvm.IRModule) -> _Unit:
        with in_phase("generate", unit, compiled):
            return compiled(unit)

    units = _in_threads(checked, units_of(rest), threads)
    facts = {name: fact for unit in units for name, fact in unit.facts.items()}
    names = {name: symbol for unit in units for name, symbol in unit.names.items()}
    origins = dict(Counter(unit.origin for unit in units for _ in unit.facts))
    with in_phase("load"):
        linked = Linked(mod, builder, target)
        if linker is not None:
            objects = {unit.code.functions: unit.code for unit in units}  # equal kernels are one
            return Code(linked.of_objects(list(objects.values()), names, linker), facts, origins)
        library = linked.of_modules([unit.code for unit in units])
        _in_threads(_load, library.module.imports, threads)
        return Code(library, facts, origins)


def _is_bound(unit: tvm.IRModule) -> bool:
    """Whether the names of a unit's functions matter, if it has any."""
    functions = list(unit.functions.values())
    return len(functions) != 1 or EXISTING in (functions[0].attrs or {})


def _cached(unit: tvm.IRModule, target: tvm.target.Target, describe: Describe, cache: KernelCache) -> _Unit | None:
    """A kernel from the cache; compiled and kept there if it is not in it. None where nobody could find it again."""
    ((var, kernel),) = unit.functions.items()
    identity = cache.identify(kernel)
    if identity is None:
        return None
    if found := cache.find(identity):
        code, facts, origin = found.code, found.facts, f"the {found.folder}'s cache"
    else:
        symbol = identity.symbol(var.name_hint)
        code, described = object_of(renamed(kernel, symbol), target, describe)
        facts, origin = described[symbol], "compiled"
        cache.add(identity, code, facts, target)
    (symbol,) = code.functions
    return _Unit(code, {var.name_hint: facts}, {var.name_hint: symbol}, origin)


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
