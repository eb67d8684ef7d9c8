"""Kernels are measured in several ways, and whatever is compiled later is computed in the fastest one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autocast
from autocast import amp, kernels, vm
from autocast.cache import store
from autocast.cli import main
from autocast.errors import CacheWarning, UnsupportedError
from autocast.kernels import detect_target, found
from autocast.kernels.found import HEURISTIC, Measured
from autocast.kernels.measuring import measure
from autocast.kernels.targets import backend_of
from autocast.vm import finding
from autocast.vm.finding import Finding
from autocast.vm.tune import Tuned, tables

MODELS = """
import torch
import autocast

def linear(batch):
    torch.manual_seed(0)
    return autocast.from_torch(torch.nn.Linear(70, 90).eval(), (torch.zeros(batch, 70),))

def several(batch):
    return linear(batch), autocast.from_torch(torch.nn.ReLU(), (torch.zeros(batch),))

def none():
    return []
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models_to_tune.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("AUTOCAST_CACHE", "on")
    monkeypatch.setenv("AUTOCAST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("AUTOCAST_SYSTEM_CACHE", raising=False)
    monkeypatch.setenv("COLUMNS", "160")


class Network(nn.Module):
    """A convolution, a product and attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.linear = nn.Conv2d(6, 20, 3, padding=1), nn.Linear(20, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(2, 6, 7, 9) to (2, 63, width)."""
        x = self.linear(self.convolution(x).flatten(2).mT)
        return nn.functional.scaled_dot_product_attention(x, x, x)


def _model(width: int = 40) -> tuple[autocast.Model, nn.Module, torch.Tensor]:
    module, x = Network(width).eval(), torch.randn(2, 6, 7, 9)
    return autocast.from_torch(module, (x,)), module, x


def _specs(model: autocast.Model) -> list[Any]:
    """Those of a model for which there are several ways."""
    with found.asking() as specs:
        kernels.plan(model.mod, detect_target())
    return specs


def _won(way: Callable[[list[str]], str], seen: list[Any]) -> Callable[[Any, Any], Measured]:
    """A measurement in which the way that `way` answers, of all, is the fastest."""

    def measured(spec: Any, backend: Any) -> Measured:
        seen.append(spec)
        ways = list(backend.ways(spec))
        return Measured({HEURISTIC: 2.0, **dict.fromkeys(ways, 1.0)}, way(ways))

    return measured


@pytest.mark.parametrize("kind", ["Convolution", "Product", "Attention"])
def test_every_way_computes_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, module, x = _model()
    model = amp.autocast(model)
    specs, before = _specs(model), vm.compile(model)(x)
    torch.testing.assert_close(before, module(x), rtol=0, atol=3e-2)
    backend = backend_of(detect_target())
    ways = {way for spec in specs if type(spec).__name__ == kind for way in backend.ways(spec)}
    assert len(ways) > 2
    for way in sorted(ways):
        monkeypatch.setattr(finding, "measure", _won(lambda ways, way=way: way if way in ways else HEURISTIC, []))
        executable = vm.compile(model.replace(), mode="normal")
        torch.testing.assert_close(executable(x), before, rtol=0, atol=1e-2)


def test_what_is_measured_once_is_kept_and_measured_again_when_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, _, x = _model()
    before = vm.compile(model)(x)
    seen: list[Any] = []
    monkeypatch.setattr(finding, "measure", _won(lambda ways: ways[0], seen))
    executable = vm.compile(model.replace(), mode="hybrid")
    count = len(seen)
    assert count >= 3
    assert executable.origin == "compiled"
    torch.testing.assert_close(executable(x), before, rtol=1e-5, atol=1e-5)
    vm.compile(model.replace(), mode="hybrid")
    assert len(seen) == count
    vm.compile(model.replace(), mode="normal")
    assert len(seen) == 2 * count


def test_programs_are_compiled_again_only_where_something_was_won(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, _ = _model()
    vm.compile(model)
    monkeypatch.setattr(finding, "measure", _won(lambda ways: HEURISTIC, []))
    assert found.state() == ()
    assert vm.compile(model.replace(), mode="normal").program is vm.compile(model).program
    monkeypatch.setattr(finding, "measure", _won(lambda ways: ways[-1], []))
    assert vm.compile(model.replace(), mode="normal").program is not vm.compile(model).program
    assert len(found.state()) >= 3


@pytest.mark.parametrize("damage", ["cut", "a way that there is not"])
def test_a_measurement_that_is_damaged_or_says_nonsense_is_ignored_with_a_warning(damage: str, tmp_path: Path) -> None:
    model, module, x = _model(width=50 if damage == "cut" else 60)  # that this process has not compiled
    (spec, *_) = _specs(model)
    found.record(spec, detect_target(), Measured({}, f"none in {tmp_path}"))
    if damage == "cut":
        (file,) = store().files_of(found.FOUND)
        file.path.write_bytes(file.path.read_bytes()[:-3])
    with pytest.warns(CacheWarning, match="is not used" if damage == "cut" else "a measurement says 'none in"):
        executable = vm.compile(model)
    torch.testing.assert_close(executable(x), module(x), rtol=1e-4, atol=1e-4)


def test_a_measurement_of_another_kernel_is_ignored_with_a_warning() -> None:
    first, second, *_ = _specs(_model(width=70)[0])
    for spec in (first, second):
        found.record(spec, detect_target(), Measured({}, HEURISTIC))
    one, other = store().files_of(found.FOUND)
    other.path.write_bytes(one.path.read_bytes())
    with pytest.warns(CacheWarning, match=r"a measurement of .* lies where one of .* is expected"):
        known = [found.measured(spec, detect_target()) for spec in (first, second)]
    assert None in known and known != [None, None]


def test_nothing_is_measured_where_it_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCAST_CACHE", "off")
    with pytest.raises(UnsupportedError, match=r"kept in the cache; AUTOCAST_CACHE is 'off'.*mode='fast'"):
        vm.compile(_model()[0], mode="hybrid")


def test_sizes_that_are_not_known_are_not_measured() -> None:
    model = autocast.from_torch(nn.Linear(70, 90), (torch.randn(3, 70),), dynamic={"batch": ("input", 0)})
    assert _specs(model) == []


def test_a_measurement_has_the_times_of_different_kernels_and_says_what_to_take() -> None:
    (spec,) = _specs(autocast.from_torch(nn.Linear(70, 90), (torch.randn(50, 70),)))
    times, winner = measure(spec, backend_of(detect_target()))
    assert all(time > 0 for time in times.values())
    assert winner == HEURISTIC or times[winner] < times[HEURISTIC]


@pytest.mark.parametrize("won", [True, False])
def test_the_command_says_what_was_won(won: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(finding, "measure", _won(lambda ways: ways[0] if won else HEURISTIC, []))
    assert main(["tune", "models_to_tune:linear", "--batch", "30"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert ("Product(m=30, n=90, k=70" in printed) == won
    assert ("2.00" in printed) == won
    assert ("nothing to win" in printed) != won


def test_the_command_says_of_which_model_there_is_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(finding, "measure", _won(lambda ways: HEURISTIC, []))
    assert main(["tune", "models_to_tune:several", "--batch", "30"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "batch 30: nothing to win" in printed
    assert "batch 30, model 2: nothing to measure" in printed


@pytest.mark.parametrize(("after", "doubts"), [(1.0, True), (0.9, False)])
def test_what_kernels_won_and_the_model_did_not_is_said(after: float, doubts: bool) -> None:
    (spec,) = _specs(autocast.from_torch(nn.Linear(70, 90), (torch.randn(50, 70),)))
    won = Finding(spec, Measured({HEURISTIC: 2.0, "1 x 1 tasks": 1.0}, "1 x 1 tasks"))
    texts = [shown for shown in tables([Tuned({}, (won,), before=1.0, after=after)]) if isinstance(shown, str)]
    assert any("the model itself is not faster" in text for text in texts) == doubts


def test_the_command_refuses_what_makes_no_model(capsys: Any) -> None:
    assert main(["tune", "models_to_tune:none"]) == 2
    assert "models_to_tune:none returned no model" in " ".join(capsys.readouterr().err.split())
    assert main(["tune", "models_to_tune:linear"]) == 2
    assert "models_to_tune:linear takes batch; expected --batch N" in " ".join(capsys.readouterr().err.split())
