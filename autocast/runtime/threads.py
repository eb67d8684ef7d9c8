"""The thread pool of compiled kernels: how many threads, and how they share the machine with torch's pool."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from autocast import settings
from autocast.errors import UnsupportedError
from autocast.runtime.tvm_runtime import function

#: How often an idle worker yields before it sleeps. Long enough to stay awake between two kernels of one model, short
#: enough to leave the cores to torch's threads soon after: TVM's own 300,000 burn a core for tenths of a second.
SPIN_COUNT = 2000

#: Calls shorter than this, seconds, are not worth ending the threads of torch's pool for: starting them takes 0.1 ms.
WORTH_A_PAUSE = 1e-3

#: OpenMP's `omp_pause_soft`: give up threads, keep their data.
_SOFT = 1

#: `AffinityMode::kBig` of TVM's thread pool: all fast cores.
_BIG_CORES = 1

#: What the user asked of TVM before anything here wrote to the environment.
_USER_THREADS = os.environ.get("TVM_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""

#: Each Python thread has a pool of its own in TVM; this remembers what this thread's pool was set to.
_configured = threading.local()


@functools.cache
def physical_cores() -> int:
    """The number of physical cores this process may run on (hardware threads of one core count once)."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = set()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


#: More than any machine has cores.
_MOST_THREADS = 1 << 16


def wanted_threads() -> int:
    """AUTOCAST_NUM_THREADS where set, else TVM_NUM_THREADS or OMP_NUM_THREADS, else one for each physical core."""
    number = settings.integer("AUTOCAST_NUM_THREADS")
    if not 0 <= number <= _MOST_THREADS:
        raise UnsupportedError(
            f"AUTOCAST_NUM_THREADS={number}: expected 1 to {_MOST_THREADS} threads, or 0 for one for each core"
        )
    if number == 0 and _USER_THREADS.isdigit():
        number = int(_USER_THREADS)
    return number or physical_cores()


def configure() -> int:
    """Give the calling thread's pool the wanted number of threads; returns that number.

    TVM would take half the visible processors (it presumes two hardware threads a core), pin each worker to one core
    and confine the calling thread, and with it torch's later threads, to as many cores. So the pool is created with as
    many workers as there are cores, none pinned, and then restricted to the wanted number.

    Raises
    ------
    UnsupportedError
        More threads are wanted than the pool was created with.
    """
    wanted = wanted_threads()
    if getattr(_configured, "threads", None) == wanted:
        return wanted
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", str(SPIN_COUNT))
    if not hasattr(_configured, "threads"):
        os.environ["TVM_NUM_THREADS"] = str(max(wanted, physical_cores()))
    function("runtime.config_threadpool")(_BIG_CORES, wanted)
    got = function("runtime.NumThreads")()
    if got < wanted:
        raise UnsupportedError(
            f"AUTOCAST_NUM_THREADS={wanted}: the kernels' pool of this process was created with {got} threads and "
            "cannot grow. Set the variable before the process starts"
        )
    _configured.threads = wanted
    return wanted


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`, which runs kernels, in a thread that has a pool: this one, as a rule.

    Of a process's threads a fork leaves the one that called it. Its pool has lost its threads and would wait for them
    forever, so in the new process another thread runs what it calls.
    """
    if _is_lost():
        return _substitute().submit(call, function, *arguments).result()
    configure()
    return function(*arguments)


def call_apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`, which runs kernels, in a thread whose pool ends with it.

    A process that has loaded models, and called none, can be forked so: none of its threads waits for others.
    """
    with ThreadPoolExecutor(1, "autocast") as thread:
        return thread.submit(call, function, *arguments).result()


def _is_lost() -> bool:
    """Whether this thread had a pool when this process was forked from its parent."""
    return getattr(_configured, "lost", False)


@functools.cache
def _substitute() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "autocast")


def _after_fork() -> None:
    _configured.lost = hasattr(_configured, "threads")
    _substitute.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def pause_openmp() -> None:
    """End the idle OpenMP threads that torch's last operator left to this thread; the next one starts them again.

    They spin for some milliseconds in case another operator comes, on the cores that our kernels are about to use: a
    call right after one of torch's took twice its time. A thread that is left of a fork has none to end.
    """
    if "torch" in sys.modules and not _is_lost():
        for pause in _pause_functions():
            pause(_SOFT)


@functools.cache
def _pause_functions() -> tuple[Callable[[int], int], ...]:
    """`omp_pause_resource_all` of each OpenMP library in this process (torch's, as a rule), found in Linux's map."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = {line.split(maxsplit=5)[-1] for line in lines if re.search(r"/lib(gomp|iomp5|omp)[-.][^/]*$", line)}
    libraries = [ctypes.CDLL(path) for path in sorted(paths)]
    return tuple(library.omp_pause_resource_all for library in libraries if hasattr(library, "omp_pause_resource_all"))
