"""Threads that have ended when the process ends: one that Python stops inside of C++ ends the process by an abort."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable


class Worker(threading.Thread):
    """A thread that the end of the process asks to end, and waits for.

    Parameters
    ----------
    target : function
        What it runs; it is given `stopping`, and looks at it wherever it waits.

    Attributes
    ----------
    stopping : threading.Event
        Set when the thread shall end.
    """

    def __init__(self, target: Callable[[threading.Event], None]) -> None:
        self.stopping = threading.Event()
        super().__init__(target=target, args=(self.stopping,), daemon=True)
        _workers.add(self)


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    running = [worker for worker in _workers if worker.is_alive()]
    for worker in running:
        worker.stopping.set()
    for worker in running:
        worker.join()
