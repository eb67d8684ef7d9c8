"""The find database: of the ways in which a kernel may compute a spec, which was measured to be the fastest.

A file of the cache for each spec and target, so that the user's measurements go before the system's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import tvm

from autocast.cache import store
from autocast.cache.notices import notice
from autocast.container import Format, read
from autocast.errors import ArtifactError

#: What a file of a measurement is marked with.
FOUND = Format("autocast.cache.found", 1, "autocast tune", "autocast.vm.compile")

#: The way that a generator chooses by itself.
HEURISTIC = "heuristic"

_TIMES = "times.json"

_asked: ContextVar[list[Any] | None] = ContextVar("asked", default=None)


class Measured(NamedTuple):
    """Microseconds by the name of each way, and the name of the one to take."""

    times: Mapping[str, float]
    winner: str


@contextmanager
def asking() -> Iterator[list[Any]]:
    """Specs for which there are several ways, as kernels are generated for them inside: each once."""
    asked: list[Any] = []
    token = _asked.set(asked)
    try:
        yield asked
    finally:
        _asked.reset(token)


def way_of(spec: Any, target: tvm.target.Target, ways: Mapping[str, Any]) -> str:
    """The way to compute a spec, of these or the heuristic's."""
    asked = _asked.get()
    if asked is not None and spec not in asked:
        asked.append(spec)
    found = measured(spec, target)
    if found is None or found.winner in (HEURISTIC, *ways):
        return HEURISTIC if found is None else found.winner
    notice(f"a measurement says {found.winner!r}, expected one of {[HEURISTIC, *ways]}. autocast tune measures again")
    return HEURISTIC


def measured(spec: Any, target: tvm.target.Target) -> Measured | None:
    """What was measured of a spec, if it was."""
    found = store().find(FOUND, _key(spec, target))
    if found is None:
        return None
    about = found.container.metadata
    if (about.get("module"), about.get("target")) != (str(spec), str(target)):
        notice(
            f"a measurement of {about.get('module')} lies where one of {spec} is expected. autocast tune measures again"
        )
        return None
    return Measured(json.loads(bytes(found.container[_TIMES])), str(about["winner"]))


def record(spec: Any, target: tvm.target.Target, result: Measured) -> None:
    """Keep a measurement, in place of an earlier one."""
    about = {"winner": result.winner, "module": str(spec), "target": str(target)}
    store().add(FOUND, _key(spec, target), {_TIMES: json.dumps(dict(result.times)).encode()}, about)


def state() -> tuple[tuple[str, str], ...]:
    """What was found to be faster than the heuristic's way: with another value, programs may be compiled otherwise."""
    won: dict[str, str] = {}
    for file in store().files_of(FOUND):
        with suppress(OSError):  # another process may remove it
            won.setdefault(file.key, _winner(file.path, file.path.stat().st_ino))
    return tuple(sorted((key, winner) for key, winner in won.items() if winner != HEURISTIC))


@lru_cache(maxsize=1 << 16)
def _winner(path: Path, _inode: int) -> str:
    """The winner in a file, which a later measurement replaces by another file; what is damaged says nothing."""
    try:
        return str(read(path, FOUND).metadata["winner"])
    except ArtifactError:
        return HEURISTIC


def _key(spec: Any, target: tvm.target.Target) -> str:
    return hashlib.sha256(repr((spec, str(target))).encode()).hexdigest()
