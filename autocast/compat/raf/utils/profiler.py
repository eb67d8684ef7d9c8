"""RAF's `raf.utils.profiler`: when each kernel begins and ends, as events of Chrome's tracing page."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autocast.vm import Executable

_events: list[dict[str, Any]] = []
_level = 0


def start(prof_level: int = 1) -> None:
    """Note the kernels of `run_vm_model` and `run_vm_executor` from now on; at level 2 all calls."""
    global _level
    _level = prof_level


def stop() -> None:
    """Note nothing from now on."""
    global _level
    _level = 0


def clear() -> None:
    """Forget what was noted."""
    _events.clear()


def get() -> dict[str, Any]:
    """What was noted: {"traceEvents": [...], "displayTimeUnit": "ms"}, with times in microseconds."""
    return {"traceEvents": list(_events), "displayTimeUnit": "ms"}


def dump(filename: str = "profile.json") -> None:
    """Write what was noted to a file, which chrome://tracing shows."""
    Path(filename).write_text(json.dumps(get(), indent=4))


@contextmanager
def around(executable: Executable) -> Iterator[None]:
    """Note an executable's calls within the block, if profiling has started."""
    if not _level:
        yield
        return
    with executable.instrumented(_note):
        yield


def _note(function: Any, name: str, before: bool, result: Any, *args: Any) -> int:
    is_kernel = not name.startswith("vm.builtin.")
    if is_kernel or _level > 1:
        shapes = ",".join(f"{arg.dtype}{[int(n) for n in arg.shape]}" for arg in args if hasattr(arg, "shape"))
        _events.append(
            {
                "name": name,
                "cat": "kernel" if is_kernel else "virtual machine",
                "ph": "B" if before else "E",
                "ts": time.perf_counter_ns() // 1000,
                "args": {"args_string": shapes},
                "pid": os.getpid(),
                "tid": "cpu",
            }
        )
    return 0
