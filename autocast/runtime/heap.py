"""The C library's heap while torch computes: what is freed is kept for the next call.

glibc takes the memory of each large tensor from the system and gives it back when the tensor is freed, so that every
operator's result costs page faults again. Torch on CPUs allocates by it, without a cache of its own.
"""

from __future__ import annotations

import ctypes
import sys
from threading import RLock
from typing import Any

#: The parameters of glibc's `mallopt`.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

#: Bytes that are kept, and that a tensor may have to come from the heap: as many as an int says.
_MOST = 2**31 - 1

#: What glibc's own thresholds grow to in a process that frees large tensors; once set they do not change by themselves.
_FREED_AT, _MAPPED_FROM = 64 * 2**20, 32 * 2**20

#: Entered again where a collection of garbage, inside, gives back what somebody wanted kept.
_lock = RLock()
_users = 0


def keep() -> None:
    """Keep what is freed, until `give_back` was called as often; nothing where the C library is another."""
    _change(1)


def give_back() -> None:
    """Give what is free back to the system, if nobody else wants it kept."""
    _change(-1)


def _change(users: int) -> None:
    global _users
    library: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    with _lock:
        before, _users = _users, _users + users
        if not hasattr(library, "malloc_trim"):
            return
        if not before:
            _set(library, _MOST, _MOST)
        elif not _users:
            _set(library, _MAPPED_FROM, _FREED_AT)
            library.malloc_trim(0)


def _set(library: Any, mapped_from: int, freed_at: int) -> None:
    library.mallopt(_MMAP_THRESHOLD, mapped_from)
    library.mallopt(_TRIM_THRESHOLD, freed_at)
