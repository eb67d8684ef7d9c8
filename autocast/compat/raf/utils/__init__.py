"""RAF's `raf.utils`: what takes how long, and how much memory."""

from __future__ import annotations

from autocast.compat.names import named
from autocast.compat.raf.utils import memory_profiler, profiler

__all__ = ["memory_profiler", "profiler"]

_INSTEAD = {
    "visualizer": "model.script() is the module's text",
    "tuner": "kernels are chosen by rules, not searched",
}


__getattr__ = named(__name__, __all__, instead=_INSTEAD)
