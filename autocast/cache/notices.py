"""What keeps the cache from working is said once, and nothing fails for it."""

from __future__ import annotations

import threading

from autocast.errors import CacheWarning
from autocast.messages import warn

_said: set[str] = set()
_lock = threading.Lock()


def notice(message: str) -> None:
    """Warn, once in this process for each message."""
    with _lock:
        if message in _said:
            return
        _said.add(message)
    warn(f"cache: {message}; models are compiled as usual", CacheWarning)
