"""Models that were never seen answer at once, by torch's kernels, and run compiled when they have been compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
from torch import nn

import autocast
from autocast import amp, vm
from autocast.errors import AutocastError, BackgroundWarning, CompileError, InputError, UnsupportedError
from autocast.training import MSE, SGD, training_step
from autocast.vm import background, starting
from autocast.vm.generic import Generic


def _network(width: int) -> nn.Module:
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(12, width), nn.GELU(), nn.Linear(width, 5)).eval()


def _model(width: int) -> tuple[autocast.Model, torch.Tensor]:
    x = torch.randn(7, 12)
    return amp.autocast(autocast.from_torch(_network(width), (x,))), x


def _later(monkeypatch: pytest.MonkeyPatch, done: list[Callable[[], None]]) -> None:
    """Compile when the test says so: `done[0]()`."""

    class Worker:
        def __init__(self, target: Callable[[Event], None]) -> None:
            done.append(lambda: target(Event()))

        def start(self) -> None:
            """Not yet."""

    monkeypatch.setattr(starting, "Worker", Worker)


def test_a_model_answers_before_it_is_compiled_and_the_same_after() -> None:
    model, x = _model(31)
    executable = vm.compile(model, mode="dynamic_hybrid")
    assert executable.status.generic > 0
    assert not executable.status.done
    first = executable(x)
    compiled = executable.wait(300)
    assert compiled.origin == "compiled in the background"
    assert executable.status.done
    assert executable.status.specialised > 0
    torch.testing.assert_close(executable(x), first, rtol=2e-2, atol=2e-2)
    assert isinstance(executable(x.numpy()), np.ndarray)
    assert executable.program is compiled.program


def test_state_goes_on_from_what_calls_made_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Callable[[], None]] = []
    x, y = torch.randn(7, 12), torch.randn(7, 5)
    step = training_step(autocast.from_torch(_network(33), (x,)), MSE(), SGD(momentum=0.9))
    inputs = (x, y, torch.tensor(0.1))
    expected = vm.compile(step)
    losses = [float(expected(*inputs)) for _ in range(6)]
    monkeypatch.setattr(import_module("autocast.vm.compile"), "find", lambda source: None)
    _later(monkeypatch, done)
    executable = vm.compile(step, mode="dynamic_hybrid")
    got = [float(executable(*inputs)) for _ in range(3)]
    done[0]()
    assert executable.status.done
    got += [float(executable(*inputs)) for _ in range(3)]
    assert got == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("grace", [0.05, 60])
def test_the_compiler_lets_a_first_call_pass_if_one_comes_soon(monkeypatch: pytest.MonkeyPatch, grace: float) -> None:
    monkeypatch.setattr(starting, "_GRACE", grace)
    model, x = _model(41)
    compiled, began = vm.compile(model, mode="fast"), Event()

    def made(stopping: Event) -> vm.Executable:
        began.set()
        return compiled

    executable = starting.StartingExecutable(compiled.signature, Generic(model), made)
    assert began.wait(30) if grace < 1 else not began.wait(0.3)
    executable(x)
    assert began.wait(30)


def test_what_was_compiled_before_is_found() -> None:
    model, _ = _model(34)
    vm.compile(model)
    assert isinstance(vm.compile(model.replace(), mode="dynamic_hybrid"), vm.Executable)


def test_a_compiler_that_fails_leaves_the_model_running(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Callable[[], None]] = []
    _later(monkeypatch, done)
    monkeypatch.setattr(background.sys, "executable", "/bin/false")
    model, x = _model(35)
    executable = vm.compile(model, mode="dynamic_hybrid")
    first = executable(x)
    with pytest.warns(BackgroundWarning, match="ended with 1.*mode='fast'"):
        done[0]()
    torch.testing.assert_close(executable(x), first)
    assert executable.status.done
    assert "not compiled" in str(executable.status)
    with pytest.raises(CompileError, match="in the background"):
        executable.wait()


def test_who_waits_too_briefly_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    _later(monkeypatch, [])
    with pytest.raises(
        TimeoutError, match=r"after 0.01 seconds the model is not compiled \(\d+ generic, 0 specialised\)"
    ):
        vm.compile(_model(39)[0], mode="dynamic_hybrid").wait(0.01)


def test_the_compilers_folder_is_removed_when_the_process_that_asked_is_gone(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    command = [
        sys.executable,
        "-c",
        "import pathlib, sys; from autocast.vm.background import _end_with as end; end(0, pathlib.Path(sys.argv[1]))",
    ]
    assert subprocess.run([*command, str(tmp_path / "job")], check=False).returncode == 1
    assert not (tmp_path / "job").exists()


def test_inputs_are_checked_from_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    _later(monkeypatch, [])
    model, _ = _model(36)
    with pytest.raises(InputError, match="expected"):
        vm.compile(model, mode="dynamic_hybrid")(torch.randn(8, 12))


def test_the_mode_is_one_of_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = _model(37)
    with pytest.raises(UnsupportedError, match="mode is 'slow', expected one of fast, normal, hybrid, dynamic_hybrid"):
        vm.compile(model, mode="slow")
    monkeypatch.setenv("AUTOCAST_FIND_MODE", "slow")
    with pytest.raises(AutocastError, match=r"AUTOCAST_FIND_MODE='slow': expected fast or .* or dynamic_hybrid"):
        vm.compile(model)


def test_without_torch_the_mode_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = _model(38)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="torch is not installed"):
        vm.compile(model, mode="dynamic_hybrid")


def test_the_compiler_steps_back_before_it_imports_anything(tmp_path: Path) -> None:
    (tmp_path / "autocast" / "vm").mkdir(parents=True)
    for package in ("autocast", "autocast/vm"):  # without, one that PYTHONPATH names would be taken
        (tmp_path / package / "__init__.py").touch()
    stub = "import os\nprint(os.getpriority(os.PRIO_PROCESS, 0))\ndef serve(): pass\n"
    (tmp_path / "autocast" / "vm" / "background.py").write_text(stub)
    command = [sys.executable, "-c", background._PROGRAM]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert int(said) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + background._NICE)
