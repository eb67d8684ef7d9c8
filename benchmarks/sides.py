"""Each side of a comparison in a process of its own, so that no thread pool takes cores from another side's."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")

Call = Callable[[], object]

#: Makes a candidate ready and returns the call to time. It goes to another process, so it is a function of a module, or
#: a `functools.partial` of one.
Build = Callable[[], Call]


class SideError(RuntimeError):
    """A candidate failed in its process; the message holds the traceback from there."""


class Side:
    """A process that builds candidates, and times them when it is told to.

    Parameters
    ----------
    name : str
        What messages call it.
    threads : int
        Threads that it may use: it is bound to as many cores.
    """

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, threads), name=name, daemon=True)
        # A thread pool reads these when its library is loaded, which is before the process gets to run our code.
        with mock.patch.dict(os.environ, OMP_NUM_THREADS=str(threads), AUTOCAST_NUM_THREADS=str(threads)):
            self._process.start()
        theirs.close()

    def build(self, key: str, build: Build) -> None:
        """Build a candidate and keep it under `key`, in place of what was there."""
        self._ask("build", key, build)

    def time(self, key: str, *, calls: int, warmup: int) -> list[float]:
        """Milliseconds of each of `calls` calls, after `warmup` calls that are not timed."""
        return self._ask("time", key, (calls, warmup))

    def compute(self, function: Callable[[], T]) -> T:
        """What `function()` returns in the process; both can be pickled."""
        return self._ask("compute", "", function)

    def drop(self, key: str) -> None:
        """Forget a candidate and free its memory."""
        self._ask("drop", key, None)

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(timeout=10)

    def _ask(self, verb: str, key: str, argument: Any) -> Any:
        self._connection.send((verb, key, argument))
        try:
            failed, answer = self._connection.recv()
        except EOFError:
            raise SideError(f"{self.name}: the process ended while it worked on {key!r} ({verb})") from None
        if failed:
            raise SideError(f"{self.name}, {key!r} ({verb}):\n{answer}")
        return answer


def _serve(connection: Any, threads: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    calls: dict[str, Call] = {}
    while True:
        try:
            verb, key, argument = connection.recv()
        except EOFError:
            return
        try:
            answer = None
            if verb == "build":
                calls[key] = argument()
            elif verb == "compute":
                answer = argument()
            elif verb == "time":
                answer = _timed(calls[key], *argument)
            else:
                calls.pop(key, None)
                gc.collect()
                if "torch._dynamo" in sys.modules:  # it compiles a function for a few shapes only, then gives up
                    sys.modules["torch._dynamo"].reset()
            connection.send((False, answer))
        except Exception:
            connection.send((True, traceback.format_exc()))


def _timed(call: Call, count: int, warmup: int) -> list[float]:
    gc.collect()
    for _ in range(warmup):
        call()
    samples = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e3)
    return samples
