"""Parameters that torch writes after they were imported: a model has them, an executable has none of them."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

import autocast
from autocast import amp, vm
from autocast.errors import TrainingModeWarning
from autocast.training import MSE, SGD, Trainer


def _network() -> tuple[nn.Module, torch.Tensor]:
    """Weights that kernels read packed, and biases, a table and factors that they read as they are; of a weight that
    lies column by column, and of a bias that begins anywhere, a model has copies."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 48), nn.LayerNorm(48), nn.Linear(48, 8)).eval()
    module[1].weight = nn.Parameter(module[1].weight.detach().t().contiguous().t())
    module[3].bias = nn.Parameter(torch.randn(9)[1:])
    return module, torch.randint(0, 50, (4, 7))


def _write(module: nn.Module, x: torch.Tensor, how: str) -> None:
    if how == "data":
        for parameter in module.parameters():
            parameter.data.mul_(1.5)
    elif how == "array":
        for parameter in module.parameters():
            parameter.detach().numpy()[...] *= 1.5
    elif how == "load_state_dict":
        module.load_state_dict({name: value * 1.5 for name, value in module.state_dict().items()})
    else:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5, fused=how == "fused")
        module(x).square().mean().backward()
        optimizer.step()


_WAYS = ["load_state_dict", "optimizer", "fused", "data", "array"]


@pytest.mark.parametrize("how", _WAYS)
@pytest.mark.parametrize("cached", [False, True])
def test_a_model_computes_with_what_torch_wrote_and_an_executable_with_what_it_was_made_of(
    how: str, cached: bool
) -> None:
    module, x = _network()
    model = autocast.from_torch(module, (x,), cached=cached)
    executable = vm.compile(model)
    before = executable(x)
    torch.testing.assert_close(before, module(x))
    _write(module, x, how)
    assert not torch.allclose(before, module(x), atol=1e-3)
    torch.testing.assert_close(executable(x), before, rtol=0, atol=0)
    torch.testing.assert_close(model(x), module(x))
    assert vm.compile(model) is vm.compile(model)


@pytest.mark.parametrize("how", _WAYS)
@pytest.mark.parametrize("compiled", [False, True])
def test_what_wraps_a_module_computes_with_what_torch_wrote(how: str, compiled: bool) -> None:
    module, x = _network()
    options = {"policy": "mp0"}
    if compiled:
        called: Any = torch.compile(module, backend="autocast", options=options)
    else:
        called = autocast.wrap(module, **options)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(called(x), module(x))
        _write(module, x, how)


def test_a_fused_step_counts_where_no_sample_changes() -> None:
    """Of a table whose other rows learn nothing."""
    table = nn.Embedding(9, 64)
    wrapped, optimizer = autocast.wrap(table, policy="mp0"), torch.optim.SGD(table.parameters(), lr=1.0, fused=True)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(wrapped(torch.tensor([1])), table(torch.tensor([1])))
        table(torch.tensor([1])).sum().backward()
        optimizer.step()


def test_a_module_that_is_gone_was_not_written() -> None:
    module, x = _network()
    model = autocast.from_torch(module, (x,))
    executable = vm.compile(model)
    del module
    gc.collect()
    assert vm.compile(model) is executable


def test_an_executable_starts_from_the_buffers_that_it_was_made_of() -> None:
    """Somebody who compares them runs torch's module first, which moves its running statistics."""
    module = nn.BatchNorm1d(4).train()
    x = torch.randn(8, 4)
    with pytest.warns(TrainingModeWarning):
        executable = vm.compile(autocast.from_torch(module, (x,)))
    for _ in range(2):
        module(x)
        executable(x)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            torch.testing.assert_close(torch.from_dlpack(executable.state[name]), module.state_dict()[name])


def test_writes_that_nobody_sees_change_nothing_by_half() -> None:
    """Of one number that is in no sample."""
    module, x = _network()
    model = autocast.from_torch(module, (x,))
    before = model(x)
    module[3].weight.data[0, 0] += 1
    torch.testing.assert_close(model(x), before, rtol=0, atol=0)
    torch.testing.assert_close(model.replace()(x), module(x))


@pytest.mark.parametrize("parameters", ["offline", "offline_shared"])
def test_parameters_that_are_stored_low_and_those_beside_them_are_of_one_time(parameters: str) -> None:
    module, x = _network()
    model = amp.autocast(autocast.from_torch(module, (x,)), parameters=parameters)
    before = model(x)
    _write(module, x, "load_state_dict")
    torch.testing.assert_close(vm.compile(model.replace())(x), before, rtol=0, atol=0)


def test_what_a_trainer_writes_to_the_module_is_in_models_of_it() -> None:
    module, x = _network()
    model = amp.autocast(autocast.from_torch(module, (x,)))
    model(x)
    trainer = Trainer(autocast.from_torch(module, (x,)), MSE(), SGD(), learning_rate=0.5)
    trainer.fit(lambda step: (x, torch.ones(4, 7, 8)), steps=3)
    trainer.to_torch(module)
    torch.testing.assert_close(vm.compile(model)(x), module(x), rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("kind", [list, dict])
def test_torch_tensors_given_to_a_relax_module_are_parameters_alike(kind: Any) -> None:
    module, x = _network()
    imported = autocast.from_torch(module, (x,))
    state = module.state_dict()
    given = {name: state[name] for name in imported.params}
    model = autocast.from_relax(imported.mod, given if kind is dict else [*given.values()])
    model(x)
    _write(module, x, "load_state_dict")
    torch.testing.assert_close(model(x), module(x))
