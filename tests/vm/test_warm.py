"""`autocast warm` compiles what users will ask for, so that they find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autocast.cache import store
from autocast.cli import main

MODELS = """
import torch
import autocast

def linear(batch):
    torch.manual_seed(0)
    return autocast.from_torch(torch.nn.Linear(8, 3).eval(), (torch.zeros(batch, 8),))

def wrong():
    return 3

def fails(batch):
    raise IndexError('[red] at a:key:b')
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models_to_warm.py").write_text(MODELS)
    (tmp_path / "broken_to_warm.py").write_text("def linear(")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("AUTOCAST_CACHE", "on")
    monkeypatch.setenv("AUTOCAST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")


def test_models_are_found_after_they_were_warmed(capsys) -> None:
    assert main(["warm", "models_to_warm:linear", "--batch", "1", "4"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "batch 1" in printed and "batch 4" in printed and printed.count("compiled") == 2
    assert len([file for file in store().files() if file.kind == "programs"]) == 2
    assert main(["warm", "models_to_warm:linear", "--batch", "4"]) == 0
    assert "the user's cache" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models_to_warm:none"], "cannot be imported"),
        (["nothing"], "cannot be imported"),
        (["models_to_warm:linear", "--length", "3"], "takes batch, and no length"),
        (["models_to_warm:linear"], "linear takes batch; expected --batch N as well"),
        (["broken_to_warm:linear"], "cannot be imported (SyntaxError: '(' was never closed"),
    ],
)
def test_bad_input_is_an_error_that_says_what_was_expected(arguments: list[str], message: str, capsys) -> None:
    assert main(["warm", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models_to_warm:fails", "--batch", "1"], "models_to_warm:fails: IndexError: [red] at a:key:b"),
        (["models_to_warm:wrong"], "returned a int; expected package.module:function"),
    ],
)
def test_a_function_that_makes_no_model_is_a_row_that_says_why(arguments: list[str], message: str, capsys) -> None:
    assert main(["warm", *arguments]) == 1
    assert message in " ".join(capsys.readouterr().out.split())


def test_nothing_is_compiled_where_nothing_is_kept(capsys, monkeypatch) -> None:
    monkeypatch.setenv("AUTOCAST_CACHE", "readonly")
    assert main(["warm", "models_to_warm:linear", "--batch", "1"]) == 2
    assert "nothing can be kept" in capsys.readouterr().err
