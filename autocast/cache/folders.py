"""Where caches are: a folder of the user's, and one that the system shares and nobody here writes to."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from autocast import settings
from autocast.cache.notices import notice

#: The layout of folders and names; another one is beside it, and neither reads the other's.
LAYOUT = "v1"


@dataclass(frozen=True)
class Folder:
    """One folder of cached files.

    Attributes
    ----------
    path : Path
    name : str
        "user" or "system".
    writable : bool
        Whether files may be added and removed.
    """

    path: Path
    name: str
    writable: bool


def folders() -> tuple[Folder, ...]:
    """The folders that may be used, in the order in which they are asked; none where AUTOCAST_CACHE is off.

    Loading a cached file executes it. So a folder counts only if nobody else can write to it: the user's must belong to
    the user, the system's to the user or to root, and neither may be writable for groups or others.
    """
    mode = settings.text("AUTOCAST_CACHE")
    if mode == "off":
        return ()
    found = []
    user = Path(settings.text("AUTOCAST_CACHE_DIR") or platformdirs.user_cache_path("autocast"))
    if _made(user, create=mode == "on") and _is_trusted(user, (os.geteuid(),)):
        found.append(Folder(user / LAYOUT, "user", mode == "on"))
    system = settings.text("AUTOCAST_SYSTEM_CACHE")
    if system and not Path(system).is_dir():
        notice(f"AUTOCAST_SYSTEM_CACHE is {system!r}, and there is no such folder")
    elif system and _is_trusted(Path(system), (os.geteuid(), 0)):
        found.append(Folder(Path(system) / LAYOUT, "system", False))
    return tuple(found)


def _made(path: Path, *, create: bool) -> bool:
    """Whether there is a folder; it is made where it is missing, for this user alone."""
    if path.is_dir():
        return True
    if not create:
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        notice(f"the folder {path} cannot be made ({error.strerror}). AUTOCAST_CACHE_DIR names another")
        return False
    return True


def _is_trusted(path: Path, owners: tuple[int, ...]) -> bool:
    """Whether nobody but these owners can write to a folder."""
    found = path.stat()
    if found.st_uid not in owners:
        notice(
            f"the folder {path} belongs to user {found.st_uid}, expected {owners[0]}, and is not used: loading executes"
        )
        return False
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        notice(f"others may write to the folder {path}, so it is not used: loading executes. Try chmod 700 {path}")
        return False
    return True
