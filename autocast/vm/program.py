"""Compile a module, and describe what was made of it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from functools import partial
from typing import Any

import tvm

from autocast import kernels, settings
from autocast.kernels.contexts import changed_context
from autocast.kernels.kernel_cache import Makers
from autocast.runtime.program import Kernel
from autocast.runtime.threads import wanted_threads
from autocast.vm.compiled import Compiled
from autocast.vm.describe import describe, describe_kernel
from autocast.vm.program_cache import cached, cached_before, makers
from autocast.vm.source import Source

#: Programs of modules compiled before, the most recently used last: a Model made again has the same module, and other
#: parameters.
_programs: OrderedDict[Any, Compiled] = OrderedDict()
_programs_lock = threading.Lock()

#: Each holds its machine code and its module, not parameters: a few MiB.
PROGRAMS_KEPT = 8


def build(source: Source) -> Compiled:
    """Compile a module for its target under TVM's `PassContext(opt_level=source.opt_level)`.

    A module that is structurally equal to one of the last few, or to one in the cache on disk, is not compiled again,
    unless the caller's `PassContext` or a debugging setting asks to see, or change, how it is compiled.
    """
    if not is_kept(source):
        return _build(source, None)
    with _programs_lock:
        return _keep(source, _programs.get(source.key) or cached(source, partial(_build, source, makers)))


def find(source: Source) -> Compiled | None:
    """What `build` answers where nothing has to be compiled for it."""
    if not is_kept(source):
        return None
    with _programs_lock:
        found = _programs.get(source.key) or cached_before(source)
        return found and _keep(source, found)


def keep(source: Source, compiled: Compiled) -> None:
    """`build` answers this from now on."""
    with _programs_lock:
        _keep(source, compiled)


def is_kept(source: Source) -> bool:
    """Whether nobody watches how it is compiled, and nothing is in it that cannot be compared: compiled libraries."""
    current = tvm.transform.PassContext.current()
    changed = (current.instruments, current.config, current.required_pass, current.disabled_pass)
    watched = any(len(part) for part in changed) or settings.debug().level or settings.text("AUTOCAST_DUMP")
    return not watched and "external_mods" not in (source.mod.attrs or {})


def _keep(source: Source, compiled: Compiled) -> Compiled:
    _programs[source.key] = compiled
    _programs.move_to_end(source.key)
    if len(_programs) > PROGRAMS_KEPT:
        _programs.popitem(last=False)
    return compiled


def _build(source: Source, makers: Makers | None) -> Compiled:
    # Instruments of the caller's may not be made for several threads.
    threads = 1 if len(tvm.transform.PassContext.current().instruments) else wanted_threads()
    times = [time.perf_counter()]
    target = source.target
    with changed_context(opt_level=source.opt_level):
        plan = kernels.plan(source.mod, target)
        times.append(time.perf_counter())
        finished = kernels.finish(plan.planned, target, threads, lambda one: describe_kernel(one).to_json(), makers)
    times.append(time.perf_counter())
    described = {name: Kernel.from_json(facts) for name, facts in finished.code.facts.items()}
    program = describe(finished.released, described, source.signature, source.state, plan.places, target)
    phases = zip(("lower", "generate"), times, times[1:], strict=False)
    seconds = {phase: ended - started for phase, started, ended in phases}
    return Compiled(program, finished.code.library, seconds, kernels=finished.code.origins)
