"""The sources of this package that make what is cached: they are part of its keys."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

#: Where this package is.
PACKAGE = Path(__file__).parent.parent


@functools.cache
def digest_of_sources(*names: str) -> str:
    """A digest of all sources in folders, or files, of this package."""
    digest = hashlib.sha256()
    for name in names:
        path = PACKAGE / name
        for source in [path] if path.suffix else sorted(path.rglob("*.py")):
            digest.update(str(source.relative_to(PACKAGE)).encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()
