"""A file that is written is whole or is not there, whoever is killed, and however full the disk is."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import time

import pytest

from autocast.container import Format, read, whole_file, write
from autocast.errors import ArtifactError

# The children write files, and do nothing that needs a thread of their parent.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

KIND = Format("autocast.test", 1, "write", "read")
KILLS = 25


def payload(number):
    return {"number": str(number).encode() * 3, "large": bytes([number % 251]) * 300_000}


def write_for_ever(path, seed):
    for number in range(seed, 10**9):
        write(path, KIND, payload(number), {"number": number})


def check(path):
    """That the file at `path` is one that was written, all of it."""
    found = read(path, KIND)
    assert {name: bytes(found[name]) for name in found.names} == payload(found.metadata["number"])


def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path):
    path = write(tmp_path / "file", KIND, payload(0), {"number": 0})
    delays = random.Random(0)
    context = multiprocessing.get_context("fork")
    for kill in range(KILLS):
        writer = context.Process(target=write_for_ever, args=(path, kill + 1))
        writer.start()
        time.sleep(delays.uniform(0, 0.03))
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        check(path)
    write(path, KIND, payload(1), {"number": 1})
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_processes_that_write_the_same_path_leave_one_whole_file(tmp_path):
    path = tmp_path / "file"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_for_ever, args=(path, seed)) for seed in range(4)]
    for writer in writers:
        writer.start()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        if path.exists():
            check(path)
    for writer in writers:
        assert writer.is_alive()
        writer.kill()
        writer.join()


def write_with_little_room(path, limit, results):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        write(path, KIND, payload(1), {"number": 1})
    except ArtifactError as error:
        results.put(str(error))
    else:
        results.put("written")


@pytest.mark.parametrize("limit", [0, 1000, 200_000])
def test_a_disk_that_is_full_changes_nothing(tmp_path, limit):
    path = write(tmp_path / "file", KIND, payload(0), {"number": 0})
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    writer = context.Process(target=write_with_little_room, args=(path, limit, results))
    writer.start()
    assert "cannot be written: File too large" in results.get(timeout=60)
    writer.join()
    check(path)
    assert read(path, KIND).metadata == {"number": 0}
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), whole_file(path) as file:
        file.write(b"new")
        raise KeyError
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_file_that_is_being_written_is_not_taken_for_abandoned(tmp_path):
    path = tmp_path / "file"
    with whole_file(path) as slow:
        slow.write(b"slow")
        with whole_file(path) as quick:
            quick.write(b"quick")
        assert path.read_bytes() == b"quick"
    assert path.read_bytes() == b"slow"


def test_what_is_no_regular_file_is_left(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match=r"Is (no regular file|a directory)"), whole_file(path):
            pytest.fail("a file was opened")
    assert (tmp_path / "pipe").is_fifo() and [one.name for one in tmp_path.iterdir()] == ["pipe"]


def test_what_a_link_leads_to_is_written(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with whole_file(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"


def test_a_folder_that_cannot_be_made_is_an_error_with_its_path(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"write: .*/file/below cannot be written: "):
        write(tmp_path / "file" / "below", KIND, {}, {})


def test_a_new_file_has_the_permissions_that_umask_leaves(tmp_path):
    old = os.umask(0o027)
    try:
        assert write(tmp_path / "file", KIND, {}, {}).stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(old)
