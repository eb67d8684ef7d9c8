"""Files by key: found, added, and, where they become too many, removed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import filelock

from autocast import settings
from autocast.cache.folders import Folder, folders
from autocast.cache.notices import notice
from autocast.container import Buffer, Container, Format, is_partial, read, remove_abandoned, write
from autocast.errors import ArtifactError

#: Seconds that a process waits for another one that compiles the same; then it does so itself.
PATIENCE = 600.0

#: The part of the time that `Store.tidy` may take.
_TIDYING = 0.01

_MIB = 2**20


class Found(NamedTuple):
    """A cached file, all of it checked, and the name of the folder that it was in."""

    container: Container
    folder: str


class File(NamedTuple):
    """One cached file, as a listing shows it."""

    path: Path
    kind: str
    key: str
    size: int
    used: float


@dataclass(frozen=True)
class Store:
    """The cached files of some folders, the first of which that is writable takes what is added."""

    folders: tuple[Folder, ...]

    def find(self, kind: Format, key: str) -> Found | None:
        """The file of a key; what was damaged, or is of another version, is removed and not found."""
        for folder in self.folders:
            path = _path(folder, kind, key)
            if not path.exists():
                continue
            try:
                container = read(path, kind)
            except ArtifactError as error:
                notice(
                    f"{path} is not used, nor are others there that are damaged: {error}", f"damaged {folder} {kind}"
                )
                _remove(folder, path)
                continue
            if folder.writable:
                with suppress(OSError):
                    os.utime(path)  # the least recently used are removed first
            return Found(container, folder.name)
        return None

    def add(
        self, kind: Format, key: str, entries: Mapping[str, Buffer | Iterable[Buffer]], facts: Mapping[str, Any]
    ) -> None:
        """Keep a file under a key, if that is possible."""
        folder = self._writable
        if folder is None:
            return
        try:
            write(_path(folder, kind, key), kind, entries, facts)
        except ArtifactError as error:
            notice(str(error))

    @contextmanager
    def alone(self, kind: Format, key: str) -> Iterator[None]:
        """Wait for other processes that make the same file; the lock of one that died is free.

        Whoever enters asks for the file again: another process may have made it meanwhile.
        """
        folder = self._writable
        if folder is None:
            yield
            return
        path = folder.path / "locks" / f"{kind.name}-{key}"
        lock = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(path, timeout=PATIENCE)
            lock.acquire()
        except (OSError, filelock.Timeout) as error:
            notice(f"no lock on {path} ({error})")
            lock = None
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def files(self) -> Iterator[File]:
        """All files of the folders."""
        for folder in self.folders:
            yield from _files(folder)

    def files_of(self, kind: Format) -> Iterator[File]:
        """The files of one kind."""
        for folder in self.folders:
            yield from _files(folder, _name(kind))

    def prune(self, limit: int | None = None) -> int:
        """Remove the least recently used files of the user's until `limit` bytes are left; how many were removed.

        What killed processes left half written goes, too, and so do locks that nobody waits for any more.

        The setting AUTOCAST_CACHE_SIZE is the limit where none is given.
        """
        folder = self._writable
        if folder is None:
            return 0
        for shard in folder.path.glob("*/??"):
            remove_abandoned(shard)
        for lock in _entries(folder.path / "locks"):
            with suppress(OSError):  # another process may be quicker
                if lock.stat().st_mtime < time.time() - PATIENCE:
                    os.unlink(lock)
        limit = settings.integer("AUTOCAST_CACHE_SIZE") * _MIB if limit is None else limit
        found = sorted(_files(folder), key=lambda file: file.used)
        total, removed = sum(file.size for file in found), 0
        for file in found:
            if total <= limit:
                break
            _remove(folder, file.path)
            total, removed = total - file.size, removed + 1
        return removed

    def tidy(self) -> None:
        """Prune, as often as that takes a hundredth of the time: all files are looked at, and there may be many."""
        folder = self._writable
        if folder is None:
            return
        last = folder.path / "pruned"  # when, and in it how many seconds that took
        with suppress(OSError, ValueError):
            if 0 <= time.time() - last.stat().st_mtime < float(last.read_text()) / _TIDYING:
                return
        started = time.perf_counter()
        self.prune()
        with suppress(OSError):
            last.write_text(str(time.perf_counter() - started))

    @property
    def _writable(self) -> Folder | None:
        return next((folder for folder in self.folders if folder.writable), None)


def store() -> Store:
    """The store that the settings ask for."""
    return Store(folders())


def _path(folder: Folder, kind: Format, key: str) -> Path:
    return folder.path / _name(kind) / key[:2] / key


def _name(kind: Format) -> str:
    return kind.name.rpartition(".")[2]


def _files(folder: Folder, kind: str = "*") -> Iterator[File]:
    for shard in sorted(folder.path.glob(f"{kind}/??")):
        for one in sorted(_entries(shard), key=lambda entry: entry.name):
            if is_partial(one.name):
                continue
            with suppress(OSError):  # another process may remove it
                found = one.stat()
                yield File(Path(one.path), shard.parent.name, one.name, found.st_size, found.st_mtime)


def _entries(path: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, if there is one."""
    with suppress(OSError), os.scandir(path) as entries:
        return list(entries)
    return []


def _remove(folder: Folder, path: Path) -> None:
    if folder.writable:
        with suppress(OSError):
            path.unlink()
