"""Compile a module, and describe what was made of it."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.ir.instrument import pass_instrument
from tvm.target import Target

from autocast import kernels, settings
from autocast.ir import all_bindings, place_of, relax_functions
from autocast.kernels.contexts import changed_context
from autocast.runtime.library import Library, load_library
from autocast.runtime.signature import Signature
from autocast.runtime.threads import wanted_threads
from autocast.vm.compiled import Compiled
from autocast.vm.describe import describe
from autocast.vm.program_cache import cached


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
    if _is_watched():
        return _build(mod, signature, state, target, opt_level)
    whole = tvm_ffi.StructuralKey(tvm.IRModule(mod.functions, attrs=mod.attrs))
    names = (*_names(mod), *state)
    key = (whole, names, str(target), opt_level, settings.debug().poison)
    with _programs_lock:
        compiled = _programs.get(key)
        if compiled is None:
            build = partial(_build, mod, signature, state, target, opt_level)
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


def _build(mod: tvm.IRModule, signature: Signature, state: tuple[str, ...], target: Target, opt_level: int) -> Compiled:
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
    library = _library(code)
    times.append(time.perf_counter())
    phases = zip(("lower", "generate", "load"), times, times[1:], strict=False)
    seconds = {phase: ended - started for phase, started, ended in phases}
    planned, functions = snapshots.whole(_PLAN_ENDS), snapshots.whole(_KERNELS_END)
    program = describe(planned, functions, signature, state, plan.places, target)
    return Compiled(program, library, seconds)


def _library(code: tvm.runtime.Executable) -> Library:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        code.export_library(str(path))
        return load_library(path.read_bytes())
