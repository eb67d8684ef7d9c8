"""Work without garbage collection: none inside, none that is due after it, and nothing of others' is touched."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from autocast import collecting
from autocast.collecting import without_garbage_collection


def _full_collections() -> int:
    return gc.get_stats()[-1]["collections"]


def test_no_collection_is_due_afterwards() -> None:
    before = _full_collections()
    with without_garbage_collection():
        kept = [[] for _ in range(200_000)]
    assert gc.isenabled() and gc.get_count()[0] < gc.get_threshold()[0]
    more = [[] for _ in range(10)]
    assert _full_collections() == before and kept and more


def test_circles_are_found_by_the_next_full_collection() -> None:
    with without_garbage_collection():
        circle: list[Any] = []
        circle.append(circle)
        del circle
    assert gc.collect() >= 1


def test_what_others_froze_and_switched_off_stays() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with without_garbage_collection():
        pass
    assert gc.get_freeze_count() >= frozen - 100 and gc.get_freeze_count() > 0
    gc.disable()
    try:
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_is_frozen_is_counted_until_some_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter((0, 5))
    monkeypatch.setattr(collecting, "_others_freeze", False)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: next(counts))
    for _ in range(4):
        with without_garbage_collection():
            pass
    assert not list(counts)
