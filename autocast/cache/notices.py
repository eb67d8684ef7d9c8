"""What keeps the cache from working is said once, and nothing fails for it."""

from __future__ import annotations

import threading

from autocast.errors import CacheWarning
from autocast.messages import warn

_said: set[str] = set()
_lock = threading.Lock()


def notice(message: str, about: str | None = None) -> None:
    """Warn, once in this process for each message, or for what it is about."""
    with _lock:
        if (about or message) in _said:
            return
        _said.add(about or message)
    warn(f"cache: {message}; models are compiled as usual", CacheWarning)
