"""What a call of a wrapped module goes by besides its inputs: torch's modes, and layers that it has yet to make."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import autocast
from autocast.wrapping import programs


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def test_what_torch_casts_in_its_own_autocast_is_cast_there_alone() -> None:
    module, x = nn.Linear(16, 8), torch.randn(4, 16)
    wrapped = autocast.wrap(module)
    with torch.autocast("cpu", torch.bfloat16):
        assert wrapped(x).dtype is torch.bfloat16
    assert wrapped(x).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert wrapped(x).dtype is torch.bfloat16


def test_several_modules_are_called_at_a_time() -> None:
    modules, x = [nn.Linear(16, 8) for _ in range(3)], torch.randn(4, 16)
    wrapped = autocast.wrap(modules[0], policy="mp0")
    weights, _ = torch.func.stack_module_state(modules)
    got = torch.vmap(lambda weights: torch.func.functional_call(wrapped, weights, x))(weights)
    torch.testing.assert_close(got, torch.stack([module(x) for module in modules]))


@pytest.mark.parametrize("trace", [torch.jit.trace, lambda module, x: make_fx(module)(x)])
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_trace_is_of_the_modules_operators(trace: Callable[..., Any]) -> None:
    module, x = nn.Sequential(nn.Linear(16, 8), nn.Tanh()), torch.randn(4, 16)
    wrapped = autocast.wrap(module, policy="mp0")
    wrapped(x)
    torch.testing.assert_close(trace(wrapped, x)(2 * x), module(2 * x))


def test_a_thread_does_not_ask_what_follows_the_operators_of_another() -> None:
    module, x = nn.Linear(16, 8), torch.randn(4, 16)
    wrapped = autocast.wrap(module)
    expected, got = wrapped(x), []
    thread = Thread(target=torch.no_grad()(lambda: got.append(wrapped(x))))
    with FlopCounterMode(display=False) as counted:
        thread.start()
        thread.join()
        assert counted.get_total_flops() == 0
        torch.testing.assert_close(wrapped(x), module(x), rtol=0, atol=0)
        assert counted.get_total_flops() > 0
    torch.testing.assert_close(got[0], expected, rtol=0, atol=0)
    assert not torch.equal(got[0], module(x)), "in low precision, by our kernels"


def test_layers_that_are_lazy_are_made_by_the_first_call() -> None:
    module, x = autocast.wrap(nn.Sequential(nn.LazyLinear(3), nn.ReLU()), policy="mp0"), torch.randn(4, 6)
    for _ in range(2):
        torch.testing.assert_close(module(x), (x @ module[0].weight.T + module[0].bias).relu())


def test_the_default_dtype_is_that_of_the_call() -> None:
    class Ones(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ones(2) * x.shape[0]

    module, x = autocast.wrap(Ones()), torch.randn(3)
    before = module(x).dtype
    torch.set_default_dtype(torch.float64)
    try:
        assert (before, module(x).dtype) == (torch.float32, torch.float64)
    finally:
        torch.set_default_dtype(torch.float32)


def test_parts_are_in_modes_of_their_own() -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
    wrapped, x = autocast.wrap(module, policy="mp0"), torch.randn(5, 6)
    still = wrapped(x)
    module[2].train()
    assert not torch.equal(wrapped(x), wrapped(x))
    module[2].eval()
    torch.testing.assert_close(wrapped(x), still)
    module[1].training = True
    found = wrapped(x)
    assert module[1].num_batches_tracked == 1
    torch.testing.assert_close(found, module(x))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("learns", [False, True])
def test_hooks_of_parts_are_called_from_when_they_are_there(learns: bool) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    wrapped, x = autocast.wrap(module, policy="mp0"), torch.randn(3, 4)
    seen: list[torch.Tensor] = []
    with torch.set_grad_enabled(learns):
        plain = wrapped(x)
        keeps = module[1].register_forward_hook(lambda _module, _inputs, output: seen.append(output))
        for count in (1, 2):
            torch.testing.assert_close(wrapped(x), plain)
            assert len(seen) == count
        torch.testing.assert_close(seen[-1], module[:2](x))
        keeps.remove()
        adds = module[0].register_forward_pre_hook(lambda _module, inputs: inputs[0] + 1)
        torch.testing.assert_close(wrapped(x), module(x))
        adds.remove()
        torch.testing.assert_close(wrapped(x), plain)


class _Optioned(nn.Module):
    """Computes by an option, by a list of names and by a configuration; a layer has an option, too."""

    def __init__(self) -> None:
        super().__init__()
        self.is_doubled, self.active, self.table = False, ["one"], {"power": 1}
        self.config = SimpleNamespace(bias=1.0)
        self.layer = nn.Sequential(_Scaled())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x) ** self.table["power"] + self.config.bias
        return (2 * x if self.is_doubled else x) + len(self.active)


class _Scaled(nn.Module):
    factor = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.factor = 5.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


def test_plain_attributes_are_as_they_are_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    imports = []
    monkeypatch.setattr(
        programs, "from_torch", lambda *args, **kw: imports.append(args) or autocast.from_torch(*args, **kw)
    )
    module, x = _Optioned(), torch.randn(3)
    wrapped = autocast.wrap(module, policy="mp0")

    def check() -> None:
        torch.testing.assert_close(wrapped(x), module(x))

    check()
    wrapped.is_doubled = module.is_doubled = True
    check()
    module.active.append("another")
    check()
    module.config.bias = 0.5
    check()
    module.table["power"] = 2
    check()
    module.layer[0].factor = 7.0
    check()
    assert len(imports) == 6
    for factor in (5.0, 7.0):  # which there were before
        module.layer[0].factor = factor
        check()
    assert len(imports) == 6
    del module.layer[0].factor
    check()
    assert len(imports) == 7


def test_an_attribute_that_never_stays_is_left_to_torchs_compiler() -> None:
    module, x = _Scaled(), torch.randn(3)
    wrapped = autocast.wrap(module, policy="mp0")
    for number in range(12):
        wrapped.factor = float(number)
        torch.testing.assert_close(wrapped(x), number * x)


def test_modes_count_where_calls_change_attributes() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.drop = 0, nn.Dropout(0.5)

        def forward(self, x: torch.Tensor, counts: bool = True) -> torch.Tensor:
            if counts:
                self.calls += 1
            return self.drop(x) + 1

    module, x = Counting().eval(), torch.randn(50)
    wrapped = autocast.wrap(module, policy="mp0")
    for _ in range(3):
        for counts in (False, True):
            torch.testing.assert_close(wrapped(x, counts), x + 1)
    assert wrapped.calls == 3
    module.drop.train()
    for counts in (False, True):
        assert not torch.equal(wrapped(x, counts), wrapped(x, counts))
    module.drop.eval()
    torch.testing.assert_close(wrapped(x, False), x + 1)


@pytest.mark.parametrize("draw", [lambda: random.randint(1, 9999), lambda: np.random.rand()])
def test_numbers_that_python_draws_are_others_in_each_call(draw: Callable[[], float]) -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * draw()

    called, x = [], torch.randn(3)
    for module in (autocast.wrap(Noisy(), policy="mp0"), Noisy()):
        random.seed(0)
        np.random.seed(0)
        called.append([module(x) for _ in range(3)])
    torch.testing.assert_close(*called)


@dataclasses.dataclass
class _Batch:
    x: torch.Tensor
    scale: float = 2.0


def test_an_instance_of_a_dataclass_is_taken() -> None:
    class Scaled(nn.Module):
        def forward(self, batch: _Batch) -> torch.Tensor:
            return batch.x * batch.scale

    x = torch.randn(3)
    assert torch.equal(autocast.wrap(Scaled())(_Batch(x)), 2 * x)
