"""What torch has for modules that are trained takes what `to_torch` makes: DDP, FSDP2, parametrizations, pruning."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, parametrize, prune

import autocast
from autocast import amp

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def _one_process() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@cache
def _converted() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
    return autocast.to_torch(amp.autocast(autocast.from_torch(module, (X,))))


def _losses(module: nn.Module) -> list[float]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = module(X).float().square().mean()
        loss.backward()
        clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def _sharded(module: nn.Module) -> nn.Module:
    return fully_shard(module, mesh=init_device_mesh("cpu", (1,)))


@pytest.mark.parametrize("wrapper", [DistributedDataParallel, _sharded], ids=["DDP", "FSDP2"])
def test_it_trains_among_processes_as_alone(wrapper: Callable[[nn.Module], nn.Module]) -> None:
    alone = _losses(copy.deepcopy(_converted()))
    assert alone[0] > alone[-1]
    assert _losses(wrapper(copy.deepcopy(_converted()))) == pytest.approx(alone)


class _Twice(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Twice the weight."""
        return 2 * weight


def test_a_parametrized_weight_is_read() -> None:
    module: Any = copy.deepcopy(_converted())
    expected: Any = copy.deepcopy(module)
    parametrize.register_parametrization(module.get_submodule("3"), "weight", _Twice())
    expected.get_parameter("3.weight").data.mul_(2)
    torch.testing.assert_close(module(X), expected(X))


def test_a_pruned_weight_is_read() -> None:
    module: Any = copy.deepcopy(_converted())
    prune.l1_unstructured(module.get_submodule("3"), "weight", amount=1.0)
    torch.testing.assert_close(module(X), module.get_parameter("3.bias").expand(3, 2))


def test_statistics_of_batches_that_a_call_replaces_hold_no_graph() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2)).train()
    ours = autocast.to_torch(autocast.from_torch(copy.deepcopy(module), (X,)))
    assert _losses(DistributedDataParallel(ours)) == pytest.approx(_losses(module))
    for name, buffer in module.named_buffers():
        torch.testing.assert_close(copy.deepcopy(ours).get_buffer(name), buffer)
