"""Map a file of named entries into memory, and check it."""

from __future__ import annotations

import hmac
import json
import mmap
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from autocast.container import archive
from autocast.container.archive import Entry, LayoutError
from autocast.container.formats import (
    MANIFEST,
    READERS,
    SIGNATURE,
    Buffer,
    Format,
    check_key,
    chunks_of,
    digest,
    signature_of,
    threads,
)
from autocast.container.tensors import from_entry
from autocast.errors import ArtifactError
from autocast.messages import checked_path

_MANIFEST_FIELDS = {"format": str, "versions": dict, "metadata": dict, "entries": dict}
_ENTRY_FIELDS = {"size": int, "crc32": int, "sha256": list}


@dataclass(frozen=True, eq=False)
class Container:
    """The entries of a file, all of them checked.

    Attributes
    ----------
    metadata : dict
        What `write` was given, as JSON has it, brought to the version of the format that this reader has.
    versions : dict of str to str
        The packages that wrote the file.
    """

    metadata: dict[str, Any]
    versions: dict[str, str]
    _entries: Mapping[str, memoryview]
    _where: str
    _format: Format

    @property
    def names(self) -> tuple[str, ...]:
        """The entries, in the order in which they were written."""
        return tuple(self._entries)

    def __getitem__(self, name: str) -> memoryview:
        """The bytes of an entry, read-only: memory that the file is mapped to, not a copy."""
        return self._entries[name].toreadonly()

    def private(self, name: str) -> memoryview:
        """The same bytes, which may be written to: the pages written to become this process's own, the file stays."""
        return self._entries[name]

    def tensors(self, name: str) -> dict[str, np.ndarray]:
        """The tensors of an entry that `tensors.as_entry` made: arrays over `private(name)`, not copies of it.

        Raises
        ------
        ArtifactError
            The entry is something else.
        """
        with self.reading(f"the entry {name!r}"):
            return from_entry(self.private(name))

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Raise ArtifactError where `what` turns out not to be what a writer makes: LayoutError is raised inside."""
        try:
            yield
        except LayoutError as error:
            raise ArtifactError(
                f"{self._format.reader}: {self._where}: {what} is not something that {self._format.writer} writes: "
                f"{error}. Whole as the file is, something else made it; do not use it unless you know what"
            ) from error


def read(source: str | os.PathLike[str] | Buffer, kind: Format, *, key: bytes | None = None) -> Container:
    """Read what `write` or `to_bytes` made; every byte is checked before anything is handed out.

    Parameters
    ----------
    source : path or buffer
        A file is mapped into memory: it must not be written to in place, which `write` never does, while the entries
        are in use. A buffer is copied once.
    kind : Format
        What the file must be marked with.
    key : bytes, optional
        The key that the file must be signed with; None: signed or not.

    Raises
    ------
    ArtifactError
        There is no such file, it was damaged, it is of another kind or version, or its signature is not of this key.
    """
    check_key(kind.reader, key)
    if not isinstance(source, bytes | bytearray | memoryview):
        checked_path(kind.reader, source, ArtifactError)
    where = str(os.fspath(source)) if isinstance(source, str | os.PathLike) else "the bytes"
    try:
        data = _mapped(source) if isinstance(source, str | os.PathLike) else _copied(memoryview(source).cast("B"))
    except OSError as error:
        raise ArtifactError(
            f"{kind.reader}: {where} cannot be read: {error.strerror or error}. Expected a file that {kind.writer} "
            "wrote; try its path"
        ) from error
    try:
        found = archive.parse(data)
        manifest = _manifest(found)
        _check_version(where, manifest["format"], kind)
        _check_signature(where, found, kind, key)
        _check_entries(found, manifest["entries"])
    except LayoutError as error:
        raise ArtifactError(
            f"{kind.reader}: {where} is damaged, or no such file: {error}. Expected a whole file that {kind.writer} "
            f"wrote; try to copy it again, or to write it again with {kind.writer}"
        ) from error
    return Container(
        _migrated(manifest, kind),
        manifest["versions"],
        {name: found[name][1] for name in manifest["entries"]},
        where,
        kind,
    )


def _mapped(path: str | os.PathLike[str]) -> memoryview:
    """The bytes of a file, mapped; writing to them changes no file."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"")  # nothing can be mapped of it
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def _copied(data: memoryview) -> memoryview:
    """A copy that begins on a page, as a mapped file does."""
    if not data.nbytes:
        return data
    pages = mmap.mmap(-1, data.nbytes)
    pages.write(data)
    return memoryview(pages)


def _manifest(found: Mapping[str, tuple[Entry, memoryview]]) -> dict[str, Any]:
    """What the manifest says, as far as it is something that `write` may have written."""
    for name in (MANIFEST, SIGNATURE):
        if name in found and zlib.crc32(found[name][1]) != found[name][0].crc:
            raise LayoutError(f"{name!r} has other bytes than were written")
    if MANIFEST not in found:
        raise LayoutError(f"it has no entry {MANIFEST!r}")
    try:
        manifest = json.loads(bytes(found[MANIFEST][1]))
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{MANIFEST!r} is not JSON: {error}") from None
    _check_fields(MANIFEST, manifest, _MANIFEST_FIELDS)
    return manifest


def _check_fields(what: str, value: Any, fields: Mapping[str, type]) -> None:
    if not isinstance(value, dict) or {name: type(one) for name, one in value.items()} != fields:
        expected = ", ".join(f"{name} ({type_.__name__})" for name, type_ in fields.items())
        raise LayoutError(f"{what!r} does not have exactly the fields {expected}")


def _check_version(where: str, found: str, kind: Format) -> None:
    name, _, version = found.partition("/")
    if name != kind.name:
        other = f"; {READERS[name]} reads this one" if name in READERS else ""
        raise ArtifactError(
            f"{kind.reader}: {where} is marked {found!r}, expected {str(kind)!r}, as {kind.writer} writes it{other}"
        )
    known = [*sorted(kind.migrations), kind.version]
    if version not in map(str, known):
        raise ArtifactError(
            f"{kind.reader}: {where} is marked {found!r}; this version of autocast writes {str(kind)!r} and reads the "
            f"versions {known}. A newer autocast reads all that an older one wrote, step by step: read the file with "
            f"the autocast that wrote it or a newer one, or write it again with {kind.writer}"
        )


def _check_signature(
    where: str, found: Mapping[str, tuple[Entry, memoryview]], kind: Format, key: bytes | None
) -> None:
    if key is None:
        return
    if SIGNATURE not in found:
        raise ArtifactError(
            f"{kind.reader}: {where} is not signed, expected a signature by the given key; try "
            f"{kind.writer}(..., key=key), or to read it without a key if you trust the file"
        )
    if not hmac.compare_digest(bytes(found[SIGNATURE][1]), signature_of(found[MANIFEST][1], key)):
        raise ArtifactError(
            f"{kind.reader}: {where} has a signature that is not by the given key: another key signed it, or somebody "
            "changed it. Expected the key that it was written with; do not use this file unless you know why"
        )


def _check_entries(found: Mapping[str, tuple[Entry, memoryview]], described: Mapping[str, Any]) -> None:
    """Raise LayoutError unless the archive has the entries of the manifest, each with the bytes that it had."""
    stored = [name for name in found if name not in (MANIFEST, SIGNATURE)]
    if list(described) != stored or list(found)[len(stored)] != MANIFEST:
        raise LayoutError(f"its manifest lists {_some(described)}, and it has {_some(found)}")
    expected: list[tuple[str, str]] = []
    pieces: list[list[memoryview]] = []
    for name, facts in described.items():
        entry, data = found[name]
        _check_fields(name, facts, _ENTRY_FIELDS)
        chunks = list(chunks_of([data]))
        if (facts["size"], facts["crc32"], len(facts["sha256"])) != (entry.size, entry.crc, len(chunks)):
            raise LayoutError(f"{name!r} is not as long as its manifest says, or of another CRC")
        expected += [(name, one) for one in facts["sha256"]]
        pieces += chunks
    with threads(len(pieces)) as pool:
        for (name, one), found_one in zip(expected, pool.map(digest, pieces), strict=True):
            if one != found_one:
                raise LayoutError(f"{name!r} has other bytes than were written (SHA-256)")


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(map(repr, listed[:5])) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")


def _migrated(manifest: Mapping[str, Any], kind: Format) -> dict[str, Any]:
    """The metadata in the version that this reader has."""
    metadata = manifest["metadata"]
    for version in range(int(manifest["format"].partition("/")[2]), kind.version):
        metadata = kind.migrations[version](metadata)
    return metadata
