"""`autocast cache` shows, checks, empties and moves what is cached."""

from __future__ import annotations

from pathlib import Path

import pytest

from autocast.cache import notices, store
from autocast.cli import main
from autocast.container import Format

PROGRAMS = Format("autocast.cache.programs", 1, "a test", "a test")
KEYS = [f"{number:02d}" + 62 * "e" for number in range(3)]


@pytest.fixture(autouse=True)
def _cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCAST_CACHE", "on")
    monkeypatch.setenv("AUTOCAST_CACHE_DIR", str(tmp_path / "user"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(notices, "_said", set())
    for number, key in enumerate(KEYS):
        target = '{"kind": "llvm", "mcpu": "znver4", "num-cores": 2}' if number else "x86-64-v3"
        store().add(PROGRAMS, key, {"library.so": bytes(2**20)}, {"target": target, "inputs": f"x: float32[{number}]"})


def said(capsys: pytest.CaptureFixture[str], *command: str, status: int = 0) -> str:
    assert main(["cache", *command]) == status
    captured = capsys.readouterr()
    return " ".join((captured.err if status == 2 else captured.out).split())


def test_info_shows_folders_and_sizes(capsys) -> None:
    text = said(capsys, "info")
    assert "programs │ 3 │ 3.0" in text
    assert "4096 MiB" in text


def test_list_shows_what_was_compiled_for_what(capsys) -> None:
    text = said(capsys, "list")
    assert "x86-64-v3 │ x: float32[0]" in text
    assert "znver4 │ x: float32[2]" in text


def test_verify_removes_what_was_damaged(capsys) -> None:
    assert said(capsys, "verify") == "3 files checked, 0 damaged"
    file = next(store().files())
    file.path.write_bytes(file.path.read_bytes()[:-1])
    assert said(capsys, "verify", status=1).endswith("3 files checked, 1 damaged")
    assert said(capsys, "verify") == "2 files checked, 0 damaged"


def test_prune_and_clear_remove_files(capsys) -> None:
    assert said(capsys, "prune", "--size", "2") == "2 files removed"
    assert said(capsys, "prune") == "0 files removed"
    assert said(capsys, "clear") == "1 files removed"


@pytest.mark.parametrize(
    ("answer", "options", "left"), [("", (), 3), ("no", (), 3), ("y", (), 0), ("Yes ", (), 0), (None, ("--yes",), 0)]
)
def test_clear_asks_at_a_terminal(answer: str | None, options, left: int, capsys, monkeypatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or answer)
    text = said(capsys, "clear", *options, status=1 if left else 0)
    assert text == ("nothing removed" if left else "3 files removed")
    assert len(list(store().files())) == left
    assert asked == ([] if options else ["Remove 3 files (3.01 MiB), with all that was measured? [y/N] "])


def test_a_packed_cache_is_unpacked_elsewhere(capsys, tmp_path: Path, monkeypatch) -> None:
    said(capsys, "pack", str(tmp_path / "all.pack"), "--target", "znver4")
    monkeypatch.setenv("AUTOCAST_CACHE_DIR", str(tmp_path / "other"))
    assert store().find(PROGRAMS, KEYS[1]) is None
    said(capsys, "unpack", str(tmp_path / "all.pack"))
    assert [store().find(PROGRAMS, key) is not None for key in KEYS] == [False, True, True]


def test_a_packed_cache_becomes_the_system_s(capsys, tmp_path: Path, monkeypatch) -> None:
    said(capsys, "pack", str(tmp_path / "all.pack"))
    said(capsys, "unpack", str(tmp_path / "all.pack"), "--into", str(tmp_path / "system"))
    monkeypatch.setenv("AUTOCAST_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setenv("AUTOCAST_SYSTEM_CACHE", str(tmp_path / "system"))
    found = store().find(PROGRAMS, KEYS[0])
    assert found is not None and found.folder == "system"


def test_bad_input_is_an_error_that_says_what_to_do(capsys, tmp_path: Path, monkeypatch) -> None:
    assert "nothing to pack for targets with 'sse9'" in said(
        capsys, "pack", str(tmp_path / "x"), "--target", "sse9", status=2
    )
    (tmp_path / "text").write_text("text")
    assert "autocast cache unpack" in said(capsys, "unpack", str(tmp_path / "text"), status=2)
    monkeypatch.setenv("AUTOCAST_CACHE", "off")
    assert "nothing to pack" in said(capsys, "pack", str(tmp_path / "x"), status=2)
