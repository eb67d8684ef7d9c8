"""What a file is marked with, and the digests and the signature in its manifest."""

from __future__ import annotations

import hashlib
import hmac
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from autocast.errors import ArtifactError
from autocast.messages import check_value

#: Bytes, or whatever shows its bytes as one dense piece of memory: a memoryview, a dense numpy array.
Buffer: TypeAlias = Any

MANIFEST, SIGNATURE = "manifest.json", "manifest.hmac"

#: Bytes that a digest is of: several threads compute those of one entry.
CHUNK = 2**24


#: Who reads the files that users have, for messages.
READERS = {
    "autocast.model": "autocast.load",
    "autocast.artifact": "autocast.runtime.load",
    "autocast.cache.pack": "autocast cache unpack",
}


@dataclass(frozen=True)
class Format:
    """What a file holds, and which versions of it can be read.

    Attributes
    ----------
    name, version
        `autocast.model` and 1, say: the file is marked `autocast.model/1`.
    writer, reader
        The functions that write and read it, for messages.
    migrations
        For each older version N that is still read, what makes its metadata those of version N + 1.
    """

    name: str
    version: int
    writer: str
    reader: str
    migrations: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"


def chunks_of(views: list[memoryview]) -> Iterator[list[memoryview]]:
    """The bytes of `views`, joined and cut into pieces of CHUNK bytes, the last one of what is left; at least one."""
    chunk: list[memoryview] = []
    room = CHUNK
    for view in views:
        while view.nbytes > room:
            yield [*chunk, view[:room]]
            view, chunk, room = view[room:], [], CHUNK
        chunk.append(view)
        room -= view.nbytes
    yield chunk


def digest(chunk: list[memoryview]) -> str:
    state = hashlib.sha256()
    for view in chunk:
        state.update(view)
    return state.hexdigest()


def crc_of(views: list[memoryview]) -> int:
    value = 0
    for view in views:
        value = zlib.crc32(view, value)
    return value


def check_key(where: str, key: Any) -> None:
    """ArtifactError unless `key` can sign a file, or is None."""
    check_value(where, "key", key, _is_key, ArtifactError, "bytes, or None; try b'...' or text.encode()")


def _is_key(key: Any) -> bool:
    return key is None or (isinstance(key, bytes | bytearray) and len(key) > 0)


def signature_of(manifest: Buffer, key: bytes) -> bytes:
    return hmac.new(key, manifest, hashlib.sha256).hexdigest().encode()


def threads(count: int) -> ThreadPoolExecutor:
    """Threads for `count` digests: hashlib and zlib let others run."""
    return ThreadPoolExecutor(max(1, min(count, len(os.sched_getaffinity(0)))))
