"""Work that makes many small objects and frees few, such as importing, reading or casting a module."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: Whether objects were found frozen once: counting walks through all of them, 30 ms where torch is among them.
_others_freeze = False


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """No collections inside, which would only walk all of torch again and again, and none that is due at its end.

    What was made meanwhile joins the oldest generation, as if it had been looked at: the first full collection finds
    it. Freezing and thawing does so by splicing lists, unless somebody keeps objects frozen, as servers do.
    """
    global _others_freeze
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _others_freeze = _others_freeze or gc.get_freeze_count() > 0
            if not _others_freeze:
                gc.freeze()
                gc.unfreeze()
            gc.enable()
