"""The command line."""

from __future__ import annotations

import runpy
import signal
import subprocess
import sys

import pytest

import autocast
from autocast.cli import main
from autocast.terminal import TEXT_WIDTH


def test_env_prints_every_setting(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["env"]) == 0
    printed = capsys.readouterr().out
    assert "AUTOCAST_NUM_THREADS" in printed
    assert "AUTOCAST_TARGET" in printed


def test_tables_for_a_pipe_are_as_wide_as_text_and_keep_names_whole(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 80 < max(map(len, lines)) <= TEXT_WIDTH
    assert any("AUTOCAST_NUM_THREADS" in line for line in lines)


def test_an_error_is_one_line(capsys):
    assert main(["rules", "softmx", "--policy", "mp9"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_an_error_says_is_shown_as_it_is(capsys, monkeypatch, tmp_path):
    """Neither as a word for a picture, nor as a style."""
    (tmp_path / "broken.py").write_text("def boom(batch): raise ValueError('[red] at a:key:b')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["tune", "broken:boom", "--batch", "1"]) == 2
    assert "broken:boom: ValueError: [red] at a:key:b" in capsys.readouterr().err


def test_rules_prints_the_rules_of_matching_operators(capsys):
    assert main(["rules", "nn.softplus"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == {"operator", "relax.nn.softplus"}


def test_rules_without_a_pattern_prints_them_all(capsys):
    assert main(["rules"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 200


def test_a_pattern_that_matches_nothing_is_an_error(capsys):
    assert main(["rules", "gellu"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "'gellu' in its name; nearest: gelu," in said


def test_rules_under_a_policy_are_what_it_makes_of_them(capsys):
    assert main(["rules", "nn.softplus", "--policy", "mp4, dtype=float16"]) == 0
    assert "mp4: everything that has a low-precision form" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["rules", "--policy", "mp2"], "'mp2' is neither a preset"),
        (["rules", "--policy", "head.[abc]"], "'head.[abc]' is neither a preset"),
        (["demo", "--policy", "mp1", "--dtype", "float16"], "are both given"),
    ],
)
def test_a_policy_that_is_none_is_an_error(options, message, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert main(options) == 2
    assert message in capsys.readouterr().err


def test_a_command_is_required(capsys):
    with pytest.raises(SystemExit) as raised:
        main([])
    assert raised.value.code == 2
    assert "usage: autocast" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as raised:
        main(["--version"])
    assert raised.value.code == 0
    assert capsys.readouterr().out == f"autocast {autocast.__version__}\n"


def test_the_demo_prints_its_table_and_profiles(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(TEXT_WIDTH))
    sizes = {"batch": 2, "sequence": 16, "hidden": 64, "heads": 2, "vocabulary": 300, "rounds": 1}
    tiny = ["demo", "--profile", *(f"--{name}={value}" for name, value in sizes.items())]
    assert main(tiny) == 0
    captured = capsys.readouterr()
    for text in ("torch.autocast bfloat16", "greedy: by one forward pass", "workspace MiB", "(virtual machine)"):
        assert text in captured.out
    assert "importing from torch" in captured.err


def test_the_package_is_a_command_that_a_reader_who_stops_reading_ends_without_a_word():
    command = [sys.executable, "-m", "autocast", "rules"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()  # as `head` does, before it has read all
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGPIPE


@pytest.mark.filterwarnings("ignore:.*found in sys.modules after import of package:RuntimeWarning")
@pytest.mark.parametrize("module", ["type_hints", "autocast.frontend", "autocast.training.gradients"])
def test_every_command_ends_as_its_reader_does(module, capsys, monkeypatch):
    """By the signal; a process of its own for each would import everything anew."""
    set_to = {}
    monkeypatch.setattr(signal, "signal", set_to.__setitem__)
    monkeypatch.setattr(sys, "argv", [module])
    runpy.run_module(module, run_name="__main__")
    assert set_to == {signal.SIGPIPE: signal.SIG_DFL}
    assert capsys.readouterr().out.count("\n") > 100


@pytest.mark.parametrize("options", [["--rounds", "0"], ["--layers", "one"], ["--hidden", "100", "--heads", "3"]])
def test_impossible_sizes_of_the_demo_are_errors(options, capsys):
    try:
        status = main(["demo", *options])
    except SystemExit as stopped:
        status = stopped.code
    assert status == 2
    assert options[0].strip("-") in capsys.readouterr().err
