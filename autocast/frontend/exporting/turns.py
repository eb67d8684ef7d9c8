"""Importing a model changes parts of torch that all threads see, so threads import one after another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from autocast.interrupts import passing_interrupts

#: The thread that imports a model now, once for each import within another.
_importing: list[int] = []


@contextmanager
def turn() -> Iterator[None]:
    """In here no other thread imports a model, nor compiles one by torch's compiler, whose lock this takes.

    While torch traces, calls of modules are traced, modules have parameters without values, and `is_exporting()` is
    true: for every thread. Torch's compiler imports models with its lock taken, so a lock beside it could be waited
    for by two threads, each of which has the other one.
    """
    from torch._dynamo.convert_frame import compile_lock

    with passing_interrupts(), compile_lock:
        _importing.append(threading.get_ident())
        try:
            yield
        finally:
            _importing.pop()


def owner() -> int | None:
    """The thread whose turn it is, if it is anybody's."""
    return next(reversed(_importing), None)
