"""RAF's `raf.utils`: what takes how long."""

from __future__ import annotations

from autocast.compat.names import named
from autocast.compat.raf.utils import profiler

__all__ = ["profiler"]

_INSTEAD = {
    "memory_profiler": "raf.model.model.trace_memory says what is in use while each kernel runs",
    "visualizer": "model.script() is the module's text",
    "tuner": "kernels are chosen by rules, not searched",
}


__getattr__ = named(__name__, __all__, instead=_INSTEAD)
