"""A module that was compiled before is found on disk: with the same bits, and never where anything of it differs."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from torch import nn

import autocast
from autocast import amp, vm
from autocast.cache import notices, store
from autocast.errors import CacheWarning
from autocast.model import Model
from autocast.training import MSE, SGD, training_step
from autocast.vm import program, program_cache
from tests.kernels.modules import module

X = torch.randn(4, 64)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCAST_CACHE", "on")
    monkeypatch.setenv("AUTOCAST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(notices, "_said", set())


@pytest.fixture
def compiled_anew(monkeypatch: pytest.MonkeyPatch):
    """Compiles a model as a new process would, which remembers nothing."""

    def compiled(model: Model, **options: object) -> vm.Executable:
        monkeypatch.setattr(program, "_programs", OrderedDict())
        return vm.compile(model.replace(), **options)

    return compiled


def network(width: int = 32, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return autocast.from_torch(nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, 8)).eval(), (X,))


def test_a_second_process_finds_the_program_and_computes_the_same_bits(compiled_anew) -> None:
    model = amp.autocast(network())
    first, second = compiled_anew(model), compiled_anew(model)
    assert (first.origin, second.origin) == ("compiled", "the user's cache")
    assert set(second.seconds) == {"look up", "load"}
    assert torch.equal(first(X), second(X))
    assert vm.trace_memory(first, "cpu", [X]) == vm.trace_memory(second, "cpu", [X])


def test_other_weights_are_the_same_program(compiled_anew) -> None:
    compiled_anew(network(seed=0))
    other = network(seed=1)
    found = compiled_anew(other)
    assert found.origin == "the user's cache"
    torch.testing.assert_close(found(X), other(X), rtol=0, atol=0)


def test_training_steps_are_found_with_a_state_of_their_own(compiled_anew) -> None:
    model = training_step(network(), MSE(), SGD(momentum=0.9))
    batch = (X, torch.randn(4, 8), torch.tensor(0.1))
    first = compiled_anew(model)
    losses = [first(*batch) for _ in range(3)]
    second = compiled_anew(model)
    assert second.origin == "the user's cache"
    assert all(torch.equal(second(*batch), loss) for loss in losses)


@pytest.mark.parametrize(
    "change",
    [
        lambda: (network(width=33), {}),
        lambda: (amp.autocast(network()), {}),
        lambda: (network(), {"opt_level": 2}),
        lambda: (network(), {"target": tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 1})}),
        lambda: (_of_pixels(), {}),
    ],
    ids=["width", "casts", "opt_level", "target", "name of an input"],
)
def test_whatever_differs_is_another_program(change, compiled_anew) -> None:
    compiled_anew(network())
    model, options = change()
    assert compiled_anew(model, **options).origin == "compiled"


def _of_pixels() -> Model:
    class Pixels(nn.Sequential):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return super().forward(pixels)

    torch.manual_seed(0)
    return autocast.from_torch(Pixels(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 8)).eval(), (X,))


def test_changed_sources_and_other_versions_are_other_programs(compiled_anew, monkeypatch) -> None:
    compiled_anew(network())
    monkeypatch.setattr(program_cache, "makers", lambda: ("other",))
    assert compiled_anew(network()).origin == "compiled"


def test_constants_of_other_values_are_other_programs(compiled_anew) -> None:
    def model(value: float) -> Model:
        table = tvm.relax.const(np.full((4, 64), value, "float32"))
        return autocast.from_relax(module(lambda x: tvm.relax.op.add(x, table), ((4, 64), "float32")))

    for value in (1.0, 2.0):
        executable = compiled_anew(model(value))
        assert executable.origin == "compiled"
        torch.testing.assert_close(executable(X), X + value)


def test_damage_is_compiled_again(compiled_anew) -> None:
    model = network()
    compiled_anew(model)
    (file,) = (file for file in store().files() if file.kind == "programs")
    data = bytearray(file.path.read_bytes())
    data[len(data) // 2] ^= 1
    file.path.write_bytes(data)
    with pytest.warns(CacheWarning, match="damaged"):
        assert compiled_anew(model).origin == "compiled"
    assert compiled_anew(model).origin == "the user's cache"


def test_what_one_watches_is_compiled(compiled_anew, monkeypatch) -> None:
    compiled_anew(network())
    monkeypatch.setenv("AUTOCAST_DEBUG", "1,poison")
    assert compiled_anew(network()).origin == "compiled"


def test_compiling_keeps_to_the_size_that_the_cache_may_take(compiled_anew, monkeypatch) -> None:
    monkeypatch.setenv("AUTOCAST_CACHE_SIZE", "0")
    compiled_anew(network())
    assert not list(store().files())


def test_nothing_is_said_where_all_is_well(compiled_anew) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled_anew(network())
        compiled_anew(network())
