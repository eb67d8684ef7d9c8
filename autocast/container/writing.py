"""Write a file of named entries, with a manifest that may be signed."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autocast.container import archive
from autocast.container.archive import Entry
from autocast.container.formats import (
    MANIFEST,
    SIGNATURE,
    Buffer,
    Format,
    check_key,
    chunks_of,
    crc_of,
    digest,
    signature_of,
    threads,
)
from autocast.container.whole_file import whole_file
from autocast.errors import ArtifactError
from autocast.messages import checked_path, version_of

#: Packages whose versions a file notes; they are for people, and decide nothing.
_PACKAGES = ("relax-autocast", "apache-tvm", "apache-tvm-ffi", "numpy")


def write(
    path: str | os.PathLike[str],
    kind: Format,
    entries: Mapping[str, Buffer | Iterable[Buffer]],
    metadata: Mapping[str, Any],
    *,
    key: bytes | None = None,
) -> Path:
    """Write a file that is whole or is not there (`whole_file`).

    Parameters
    ----------
    path : path
        The folders above it are made if they are missing.
    kind : Format
        What the file is marked with.
    entries : mapping of str to buffer, or to several that are joined
        Names are relative paths of letters, digits, `_`, `.` and `-`.
    metadata : mapping
        What JSON can say.
    key : bytes, optional
        Sign the file with this key (HMAC-SHA256), which whoever reads it may ask for.

    Raises
    ------
    ArtifactError
        The file cannot be written: the disk is full, read-only or fails. What was at `path` is still there.
    """
    path = checked_path(kind.writer, path, ArtifactError)
    check_key(kind.writer, key)
    pieces = _pieces(kind, entries, metadata, key)
    try:
        with whole_file(path) as file:
            file.writelines(pieces)
    except OSError as error:
        raise ArtifactError(
            f"{kind.writer}: {path} cannot be written: {error.strerror or error}. Expected a folder with room for the "
            "file that this process may write to; nothing was changed. Try another path"
        ) from error
    return path


def to_bytes(
    kind: Format,
    entries: Mapping[str, Buffer | Iterable[Buffer]],
    metadata: Mapping[str, Any],
    *,
    key: bytes | None = None,
) -> bytes:
    """What `write` would write."""
    return b"".join(_pieces(kind, entries, metadata, key))


def _pieces(
    kind: Format, entries: Mapping[str, Buffer | Iterable[Buffer]], metadata: Mapping[str, Any], key: bytes | None
) -> Iterator[Buffer]:
    """The bytes of a file, in order."""
    archive.check_names([*entries, MANIFEST, SIGNATURE])
    listed: list[Entry] = []
    offsets: list[int] = []
    described: dict[str, Any] = {}
    at = 0

    def put(name: str, views: list[memoryview], crc: int) -> Iterator[Buffer]:
        nonlocal at
        entry = Entry(name, sum(view.nbytes for view in views), crc)
        header = archive.header(entry, at)
        listed.append(entry)
        offsets.append(at)
        at += len(header) + entry.size
        yield header
        yield from views

    for name, value in entries.items():
        views = _views(value)
        described[name] = _described(views)
        yield from put(name, views, described[name]["crc32"])
    versions = {name: version_of(name) for name in _PACKAGES}
    manifest = json.dumps(
        {"format": str(kind), "versions": versions, "metadata": dict(metadata), "entries": described},
        allow_nan=False,
        separators=(",", ":"),
    ).encode()
    signature = {} if key is None else {SIGNATURE: signature_of(manifest, key)}
    for name, text in {MANIFEST: manifest, **signature}.items():
        yield from put(name, [memoryview(text)], zlib.crc32(text))
    yield archive.directory(listed, offsets, at)


def _views(value: Any) -> list[memoryview]:
    """The bytes of one entry."""
    try:
        pieces = [memoryview(value)]
    except TypeError:
        pieces = [memoryview(one) for one in value]
    return [piece.cast("B") for piece in pieces]


def _described(views: list[memoryview]) -> dict[str, Any]:
    """What the manifest says of an entry."""
    chunks = list(chunks_of(views))
    with threads(len(chunks)) as pool:
        crc = pool.submit(crc_of, views)
        return {
            "size": sum(view.nbytes for view in views),
            "sha256": list(pool.map(digest, chunks)),
            "crc32": crc.result(),
        }
