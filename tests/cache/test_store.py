"""The store of files by key: what is in it is found, and nothing that is wrong with it makes anything fail."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import time
import warnings
from pathlib import Path

import pytest

from autocast.cache import folders, notices, store
from autocast.container import Format
from autocast.errors import CacheWarning
from tests.cache.faults import kill_cache_writers, kill_exporters

KIND = Format("autocast.cache.tests", 1, "a test", "a test")
KEY = "ab" + 62 * "0"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCAST_CACHE", "on")
    monkeypatch.setenv("AUTOCAST_CACHE_DIR", str(tmp_path / "user"))
    monkeypatch.delenv("AUTOCAST_SYSTEM_CACHE", raising=False)
    monkeypatch.setattr(notices, "_said", set())


def _file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "user").rglob(KEY)
    return path


def test_what_was_added_is_found_in_a_folder_for_this_user_alone(tmp_path: Path) -> None:
    assert store().find(KIND, KEY) is None
    store().add(KIND, KEY, {"code": b"1234"}, {"of": "x"})
    found = store().find(KIND, KEY)
    assert found is not None
    assert (bytes(found.container["code"]), found.container.metadata, found.folder) == (b"1234", {"of": "x"}, "user")
    assert (tmp_path / "user").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", ["off", "readonly"])
def test_nothing_is_written_where_the_user_wants_none(mode: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("AUTOCAST_CACHE", mode)
    store().add(KIND, KEY, {"code": b"1"}, {})
    assert not list(tmp_path.iterdir())


def test_a_readonly_cache_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store().add(KIND, KEY, {"code": b"1"}, {})
    monkeypatch.setenv("AUTOCAST_CACHE", "readonly")
    assert store().find(KIND, KEY) is not None


def test_the_user_s_file_wins_over_the_system_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store().add(KIND, KEY, {"code": b"system"}, {})
    (tmp_path / "user").rename(tmp_path / "system")
    monkeypatch.setenv("AUTOCAST_SYSTEM_CACHE", str(tmp_path / "system"))
    found = store().find(KIND, KEY)
    assert found is not None and found.folder == "system"
    store().add(KIND, KEY, {"code": b"user"}, {})
    found = store().find(KIND, KEY)
    assert found is not None and bytes(found.container["code"]) == b"user"
    assert [folder.name for folder in folders()] == ["user", "system"]


def test_a_folder_of_the_system_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCAST_SYSTEM_CACHE", str(tmp_path / "none"))
    with pytest.warns(CacheWarning, match="there is no such folder"):
        assert [folder.name for folder in folders()] == ["user"]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_a_folder_that_others_may_write_to_is_not_used(mode: int, tmp_path: Path) -> None:
    store().add(KIND, KEY, {"code": b"1"}, {})
    (tmp_path / "user").chmod(mode)
    with pytest.warns(CacheWarning, match=r"others may write to the folder .*chmod 700"):
        assert store().find(KIND, KEY) is None


def test_a_folder_of_another_user_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    store().add(KIND, KEY, {"code": b"1"}, {})
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.warns(CacheWarning, match="loading executes"):
        assert store().find(KIND, KEY) is None


def test_damage_anywhere_is_said_once_and_the_file_is_made_again(tmp_path: Path) -> None:
    generator = random.Random(0)
    for number in range(60):
        store().add(KIND, KEY, {"code": bytes(range(256)) * 4, "facts": b"{}"}, {"of": "x"})
        data = bytearray(_file(tmp_path).read_bytes())
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        _file(tmp_path).write_bytes(data)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert store().find(KIND, KEY) is None, number
        assert len(said) <= 1
        assert not list((tmp_path / "user").rglob(KEY))


def test_another_version_is_not_used() -> None:
    store().add(Format(KIND.name, 2, "a test", "a test"), KEY, {"code": b"1"}, {})
    with pytest.warns(CacheWarning, match="reads the versions"):
        assert store().find(KIND, KEY) is None


def test_a_folder_that_cannot_be_made_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOCAST_CACHE_DIR", str(tmp_path / "file" / "user"))
    with pytest.warns(CacheWarning, match="cannot be made"):
        assert store().folders == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store().add(KIND, KEY, {"code": b"1"}, {})


def test_a_full_disk_is_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(CacheWarning, match="No space left on device"):
        store().add(KIND, KEY, {"code": b"1"}, {})
    assert store().find(KIND, KEY) is None


def test_the_least_recently_used_go_first() -> None:
    keys = [f"{number:02d}" + 62 * "0" for number in range(4)]
    for number, key in enumerate(keys):
        store().add(KIND, key, {"code": bytes(100_000)}, {})
        (path,) = [file.path for file in store().files() if file.key == key]
        os.utime(path, (number, number))
    assert store().find(KIND, keys[0]) is not None  # used now
    assert store().prune(250_000) == 2
    assert [store().find(KIND, key) is not None for key in keys] == [True, False, False, True]
    assert store().prune() == 0


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_a_cache_that_takes_long_to_look_through_is_not_looked_through_again_at_once(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOCAST_CACHE_SIZE", "0")
    store().add(KIND, KEY, {"code": b"1"}, {})
    (store().folders[0].path / "pruned").write_text(str(seconds))
    store().tidy()
    assert (store().find(KIND, KEY) is None) == (seconds == 0)


def test_locks_that_nobody_waits_for_any_more_are_removed() -> None:
    with store().alone(KIND, KEY), store().alone(KIND, 64 * "0"):
        first, second = sorted((store().folders[0].path / "locks").iterdir())
        os.utime(first, (0, 0))
        assert store().prune() == 0
        assert not first.exists()
        assert second.exists()


def _compiling(number: int, log: str) -> None:
    kept = store()
    with kept.alone(KIND, KEY):
        if kept.find(KIND, KEY) is None:
            time.sleep(0.2)
            with open(log, "a") as file:
                file.write("compiled\n")
            kept.add(KIND, KEY, {"code": b"1"}, {})


def test_eight_processes_at_once_compile_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_compiling, args=(number, str(log))) for number in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 8
    assert log.read_text() == "compiled\n"


def _holding(ready: str) -> None:
    with store().alone(KIND, KEY):
        Path(ready).touch()
        time.sleep(600)


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_holding, args=(str(tmp_path / "ready"),))
    process.start()
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    with store().alone(KIND, KEY):
        pass


def test_kills_while_files_are_written_leave_whole_files_alone() -> None:
    kill_cache_writers(12)
    assert list(store().files())


def test_kills_while_a_model_is_exported_leave_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    assert kill_exporters(12, tmp_path) == 12


def test_what_a_killed_process_left_is_not_listed_and_is_removed(tmp_path: Path) -> None:
    store().add(KIND, KEY, {"code": b"1"}, {})
    left = _file(tmp_path).with_name(f".{KEY}.0123456789abcdef.partial")
    left.write_bytes(b"half")
    assert [file.key for file in store().files()] == [KEY]
    assert store().prune() == 0
    assert not left.exists()
    assert store().find(KIND, KEY) is not None
