"""Work that makes many small objects and frees few, such as importing, reading or casting a module."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """No collections inside, which would only walk all of torch again and again, and none that is due at its end.

    What was made meanwhile joins the oldest generation, as if it had been looked at: the first full collection finds
    it. Freezing and thawing does so by splicing lists, unless somebody keeps objects frozen.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()
