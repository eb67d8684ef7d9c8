"""Files that are whole or are not there, whatever happens to the process that writes them."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_ENDING = ".partial"


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which takes the name `path` when the block ends; where it raises, nothing has changed.

    Whoever reads `path`, now or after a crash, finds the old file or the new one, never a part: the bytes go to a file
    beside it, reach the disk, and only then take the name, as renaming is atomic in POSIX. Any number of processes may
    write the same path at once: the last one's file stays. What a killed process left is removed by the next.

    Parameters
    ----------
    path : path
        The folders above it are made if they are missing. Where it is a symbolic link, what that leads to is written.

    Raises
    ------
    OSError
        The disk is full or read-only, for example, or the path is a folder, a pipe or a device.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "Is no regular file")
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent, f"{path.name}.")
    file, partial = _locked_partial(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _locked_partial(path: Path) -> tuple[BinaryIO, Path]:
    """A new file beside `path`, locked for as long as its writer lives."""
    while True:
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_ENDING}")
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return os.fdopen(handle, "wb"), partial
        os.close(handle)  # another writer took it for abandoned before it was locked


def is_partial(name: str) -> bool:
    """Whether a file of this name is one that `whole_file` has not finished."""
    return name.startswith(".") and name.endswith(_ENDING)


def remove_abandoned(folder: Path, name: str = "") -> None:
    """Remove what killed writers left in a folder, of the file `name` or of all: partial files that nobody has a lock
    on."""
    with os.scandir(folder) as found:
        left = [one.path for one in found if one.name.startswith(f".{name}") and is_partial(one.name)]
    for path in left:
        with suppress(OSError), open(path, "rb") as file:  # another process may be quicker
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)


def _sync_folder(path: Path) -> None:
    """Let the names in a folder reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
