"""Compile a module, and describe what was made of it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm.target import Target

from autocast import kernels, settings
from autocast.ir import all_bindings, place_of, relax_functions
from autocast.kernels.contexts import changed_context
from autocast.kernels.kernel_cache import Makers
from autocast.runtime.program import Kernel
from autocast.runtime.signature import Signature
from autocast.runtime.threads import wanted_threads
from autocast.vm.compiled import Compiled
from autocast.vm.describe import describe, describe_kernel
from autocast.vm.program_cache import cached, makers

#: Programs of modules compiled before, the most recently used last: a Model made again has the same module, and other
#: parameters.
_programs: OrderedDict[Any, Compiled] = OrderedDict()
_programs_lock = threading.Lock()

#: Each holds its machine code and its module, not parameters: a few MiB.
PROGRAMS_KEPT = 8


def build(mod: tvm.IRModule, signature: Signature, state: tuple[str, ...], target: Target, opt_level: int) -> Compiled:
    """Compile `mod` for `target` under TVM's `PassContext(opt_level=opt_level)`.

    A module that is structurally equal to one of the last few, or to one in the cache on disk, is not compiled again,
    unless the caller's `PassContext` or a debugging setting asks to see, or change, how it is compiled.

    Parameters
    ----------
    signature : Signature
        Of `main`.
    state : tuple of str
        The names of the parameters that a call replaces.
    """
    if _is_watched() or "external_mods" in (mod.attrs or {}):  # compiled libraries, which nothing compares
        return _build(mod, signature, state, target, opt_level, None)
    whole = tvm_ffi.StructuralKey(tvm.IRModule(mod.functions, attrs=mod.attrs))
    names = (*_names(mod), *state)
    key = (whole, names, str(target), opt_level, settings.debug().poison)
    with _programs_lock:
        compiled = _programs.get(key)
        if compiled is None:
            build = partial(_build, mod, signature, state, target, opt_level, makers)
            compiled = _programs[key] = cached(mod, names, target, opt_level, build)
        _programs.move_to_end(key)
        if len(_programs) > PROGRAMS_KEPT:
            _programs.popitem(last=False)
    return compiled


def _names(mod: tvm.IRModule) -> Iterator[tuple[str, str]]:
    """The name of each variable, and where it comes from: equal modules of other names are other programs to who reads
    a profile, or an error."""
    for _, function in relax_functions(mod):
        for var in (*function.params, *(binding.var for binding in all_bindings(function.body))):
            yield str(var.name), place_of(var).module


def _is_watched() -> bool:
    current = tvm.transform.PassContext.current()
    changed = (current.instruments, current.config, current.required_pass, current.disabled_pass)
    return any(len(part) for part in changed) or bool(settings.debug().level or settings.text("AUTOCAST_DUMP"))


def _build(
    mod: tvm.IRModule,
    signature: Signature,
    state: tuple[str, ...],
    target: Target,
    opt_level: int,
    makers: Makers | None,
) -> Compiled:
    # Instruments of the caller's may not be made for several threads.
    threads = 1 if len(tvm.transform.PassContext.current().instruments) else wanted_threads()
    times = [time.perf_counter()]
    with changed_context(opt_level=opt_level):
        plan = kernels.plan(mod, target)
        times.append(time.perf_counter())
        finished = kernels.finish(plan.planned, target, threads, lambda one: describe_kernel(one).to_json(), makers)
    times.append(time.perf_counter())
    described = {name: Kernel.from_json(facts) for name, facts in finished.code.facts.items()}
    program = describe(finished.released, described, signature, state, plan.places, target)
    phases = zip(("lower", "generate"), times, times[1:], strict=False)
    seconds = {phase: ended - started for phase, started, ended in phases}
    return Compiled(program, finished.code.library, seconds, kernels=finished.code.origins)
