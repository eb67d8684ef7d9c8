"""A torch module that is unchanged is not exported again; one that is changed is, whatever was changed."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm_ffi
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import type_hints
from autocast import Model, from_torch, operators, vm
from autocast.errors import CacheWarning, FallbackWarning, TrainingModeWarning
from tests.architectures import ARCHITECTURES

X = (torch.ones(4, 8),)


class Sizes(dict):
    """A dictionary with an attribute."""


class Factor(float):
    """A number of another class."""


class Net(nn.Module):
    """Everything that an import reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale, self.activation, self.options = 2.0, torch.relu, {"shift": [1, 2]}
        self.sizes, self.array, self.factor = Sizes(), np.ones(2), np.float64(1)
        self.sizes.shift = 0
        self.plain = torch.tensor([1.0, 2.0])
        self.register_buffer("mask", torch.ones(8), persistent=False)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("started", torch.tensor(True))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.activation(self.layer(x) * self.mask) * self.scale + self.options["shift"][1] * self.plain[0]
        return {"y": self.head(y - self.mean), "z": y}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCAST_CACHE", "on")
    monkeypatch.setenv("AUTOCAST_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def net_is_known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has `Net`, imported with X."""
    path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOCAST_CACHE", "on")
        patch.setenv("AUTOCAST_CACHE_DIR", str(path))
        from_torch(Net().eval(), X, cached=True)
    return path


@pytest.fixture
def _cache_of_net(net_is_known: Path, monkeypatch: pytest.MonkeyPatch, _cache: None) -> None:
    monkeypatch.setenv("AUTOCAST_CACHE_DIR", str(net_is_known))


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each module that is exported."""
    found: list[str] = []
    export = torch.export.export
    monkeypatch.setattr(
        torch.export,
        "export",
        lambda module, *args, **kwargs: (found.append(type(module).__name__), export(module, *args, **kwargs))[1],
    )
    return found


def _same(found: Model, expected: Model) -> None:
    tvm_ffi.structural_equal(found.mod, expected.mod, map_free_vars=True) or pytest.fail("another module")
    assert (found.script(), found.output_names) == (expected.script(), expected.output_names)
    assert (list(found.params), found.frozen) == (list(expected.params), expected.frozen)


def test_it_is_exported_once_and_takes_the_parameters_of_each_module(exports: list[str]) -> None:
    for _ in range(3):
        module = Net().eval()
        model = from_torch(module, X, cached=True)
        outputs = vm.compile(model)(*X)
        torch.testing.assert_close(outputs[0], module(*X)["y"], rtol=1e-5, atol=1e-5)
        _same(model, from_torch(module, X))
    assert exports == 4 * ["Net"]  # one, and three to compare with


@pytest.mark.parametrize("name", ["t5", "resnet", "lstm"])
def test_architectures_are_the_same_as_imported(name: str, exports: list[str]) -> None:
    module, args, kwargs, dynamic = ARCHITECTURES[name]()
    first, second = (from_torch(module, args, example_kwargs=kwargs, dynamic=dynamic, cached=True) for _ in range(2))
    assert len(exports) == 1
    _same(second, first)
    assert all(second.params[key].data_ptr() == first.params[key].data_ptr() for key in first.params)


def test_what_a_call_changes_is_changed_by_the_next(exports: list[str]) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).train()
    first, second = (from_torch(module, X, cached=True, seed=3) for _ in range(2))
    assert len(exports) == 1
    _same(second, first)
    with pytest.warns(TrainingModeWarning):
        assert torch.equal(vm.compile(second)(*X), vm.compile(first)(*X))


def _set(path: str, value: Any) -> Callable[[Net], None]:
    *owners, name = path.split(".")

    def change(module: Net) -> None:
        owner: Any = module
        for each in owners:
            owner = getattr(owner, each)
        setattr(owner, name, value)

    return change


def _tie(module: Net) -> None:
    module.head.weight = module.layer.weight


def _factor(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * factor


CHANGES: dict[str, Callable[[Net], Any]] = {
    "a number": _set("scale", 3.0),
    "a nested one": lambda module: module.options["shift"].__setitem__(1, 3),
    "a function": _set("activation", torch.tanh),
    "an attribute of a dictionary": lambda module: setattr(module.sizes, "shift", 1),
    "an array": lambda module: module.array.fill(2),
    "a number of numpy's": _set("factor", np.float64(2)),
    "what a function holds": _set("activation", _factor(2.0)),
    "a constant": _set("plain", torch.tensor([1.0, 3.0])),
    "a buffer that no checkpoint has": lambda module: module.mask.mul_(2),
    "a flag": lambda module: module.started.fill_(False),
    "a shape": _set("head", nn.Linear(8, 4)),
    "a bias": _set("head", nn.Linear(8, 8, bias=False)),
    "a class": _set("head", nn.Identity()),
    "a dtype": lambda module: module.to(torch.bfloat16),
    "what is tied": _tie,
    "what is trained": lambda module: module.head.weight.requires_grad_(False),
    "training": lambda module: module.train(),
    "a hook": lambda module: module.head.register_forward_hook(lambda *args: args[-1] * 2),
}


@pytest.mark.usefixtures("_cache_of_net")
def test_it_is_not_exported_again_without_a_change(exports: list[str]) -> None:
    from_torch(Net().eval(), X, cached=True)
    assert not exports


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.usefixtures("_cache_of_net")
def test_it_is_exported_again_after_a_change(name: str, exports: list[str]) -> None:
    module = Net().eval()
    CHANGES[name](module)
    from_torch(module, tuple(x.to(next(module.parameters()).dtype) for x in X), cached=True)
    assert exports == ["Net"]


def test_what_a_function_holds_is_compared(exports: list[str]) -> None:
    for factor in (2.0, 3.0, 2.0):
        module = Net().eval()
        module.activation = _factor(factor)
        from_torch(module, X, cached=True)
    assert len(exports) == 2


@pytest.mark.parametrize(
    "given",
    [
        {"example_args": (torch.ones(5, 8),)},
        {"example_args": (torch.ones(8, 4).T,)},
        {"example_args": (), "example_kwargs": {"x": X[0]}},
        {"dynamic": {"n": ("x", 0)}},
        {"dynamic": {"n": ("x", 0, 1, 9)}},
        {"dynamic": {"m": ("x", 0)}},
    ],
    ids=["sizes", "strides", "by name", "dynamic", "bounds", "names"],
)
@pytest.mark.usefixtures("_cache_of_net")
def test_it_is_exported_again_with_other_inputs(given: dict[str, Any], exports: list[str]) -> None:
    from_torch(Net().eval(), **{"example_args": X, **given}, cached=True)
    assert exports == ["Net"]


def test_it_is_exported_again_when_a_file_of_its_code_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exports: list[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    helper = tmp_path / "cached_imports_helper.py"
    (tmp_path / "cached_imports_net.py").write_text(
        "import torch, cached_imports_helper\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return cached_imports_helper.compute(x)\n"
    )
    for body in ("x + 1", "x + 1", "x * 3"):
        helper.write_text(f"def compute(x):\n    return {body}\n")
        for name in ("cached_imports_net", "cached_imports_helper"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        sys.dont_write_bytecode, written = True, sys.dont_write_bytecode
        module = importlib.import_module("cached_imports_net").Net()
        sys.dont_write_bytecode = written
        model = from_torch(module, X, cached=True)
        assert torch.equal(vm.compile(model)(*X), module(*X))
    assert len(exports) == 2


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        (threading.Lock(), "from_torch: Net.lock is a _thread.lock, and nobody can say whether that is unchanged"),
        ([torch.Generator()], r"from_torch: Net.lock\[0\] is a torch._C.Generator"),
        ({nn.ReLU()}, "from_torch: Net.lock is a set of objects"),
        (Factor(2), "from_torch: Net.lock is a tests.frontend.caching.test_cached_imports.Factor"),
    ],
    ids=["lock", "generator", "set", "number"],
)
def test_what_cannot_be_compared_is_said_and_exported_again(attribute: Any, message: str, exports: list[str]) -> None:
    module = Net().eval()
    module.lock = attribute
    for _ in range(2):
        with pytest.warns(CacheWarning, match=message):
            from_torch(module, X, cached=True)
    assert len(exports) == 2


def test_calls_that_are_left_to_torch_are_said_each_time(exports: list[str]) -> None:
    class Left(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.det(x)

    for _ in range(2):
        with pytest.warns(FallbackWarning):
            from_torch(Left(), (torch.eye(3),), cached=True)
    assert len(exports) == 2


def test_calls_of_operators_of_a_users_are_exported_each_time(exports: list[str]) -> None:
    @torch.library.custom_op("autocast_tests::cached_twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    operators.register(
        "tests.cached_twice",
        "x",
        infer_type=operators.like(0),
        rule=type_hints.follow(1),
        why="moves data",
        expand=lambda e: e.operands[0],
        torch="autocast_tests::cached_twice",
        override=True,
    )

    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return twice(x)

    for module in (Calls(), Net().eval()):
        for _ in range(2):
            from_torch(module, X, cached=True)
    assert exports == ["Calls", "Calls", "Net"]


def test_nothing_is_kept_where_the_cache_is_off(exports: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCAST_CACHE", "off")
    for _ in range(2):
        from_torch(Net().eval(), X, cached=True)
    assert len(exports) == 2


_PROCESS = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from autocast.frontend.caching.fingerprint import fingerprint
module = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=64)).eval()
print(fingerprint(module, (torch.ones(1, 4, dtype=torch.int64),)))
"""


def test_another_process_finds_it() -> None:
    def run() -> str:
        return subprocess.run([sys.executable, "-c", _PROCESS], capture_output=True, text=True, check=True).stdout

    assert run() == run() != ""


def test_a_whole_model_of_transformers_can_be_compared(exports: list[str]) -> None:
    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            torch.manual_seed(0)
            from_torch(GPT2LMHeadModel(config).eval(), (torch.ones(1, 4, dtype=torch.int64),), cached=True)
    assert len(exports) == 1
