"""One file that holds named entries: a ZIP archive that is memory-mapped, and checked before anything of it is used.

Models, compiled artifacts and the cache on disk are written so. See docs/files.md.
"""

from autocast.container.archive import LayoutError
from autocast.container.formats import Buffer, Format
from autocast.container.reading import Container, read
from autocast.container.tensors import as_entry
from autocast.container.whole_file import is_partial, remove_abandoned, whole_file
from autocast.container.writing import to_bytes, write

__all__ = [
    "Buffer",
    "Container",
    "Format",
    "LayoutError",
    "as_entry",
    "is_partial",
    "read",
    "remove_abandoned",
    "to_bytes",
    "whole_file",
    "write",
]
