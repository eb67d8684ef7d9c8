"""Sizes that no call had before: nothing is compiled for them, and they leave no memory behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn

from autocast import amp, vm
from autocast.frontend import from_torch
from autocast.runtime import pool
from tests.dynamic_sizes import CASES

CALLS = 200


class Unseen(NamedTuple):
    """A module, an example, the names of its sizes as `from_torch` takes them, and an input of other sizes."""

    module: nn.Module
    example: torch.Tensor
    dynamic: dict[str, tuple[str, int]]
    input: Callable[[random.Random], torch.Tensor]


class _RegionHead(nn.Module):
    """Classes and boxes of proposals, as detectors of two stages have them."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(16 * 9, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.classes, self.boxes = nn.Linear(64, 11), nn.Linear(64, 44)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.hidden(x.flatten(1))
        return self.classes(hidden).softmax(-1), self.boxes(hidden)


def _bert() -> Unseen:
    case = CASES["bert"]()
    (name,) = case.inputs
    return Unseen(
        case.module,
        case.inputs[name],
        {"batch": (name, 0), "length": (name, 1, 2, 32)},
        lambda chance: torch.randint(0, 101, (chance.randint(1, 8), chance.randint(2, 32))),
    )


def _resnet() -> Unseen:
    case = CASES["resnet"]()
    (name,) = case.inputs
    return Unseen(
        case.module,
        case.inputs[name],
        {"height": (name, 2, 17, 64), "width": (name, 3, 17, 64)},
        lambda chance: torch.randn(case.inputs[name].shape[0], 3, chance.randint(17, 64), chance.randint(17, 64)),
    )


def _region_head() -> Unseen:
    proposals = torch.randn(100, 16, 3, 3)
    return Unseen(
        _RegionHead(), proposals, {"n": ("x", 0)}, lambda chance: torch.randn(chance.randint(1, 1000), 16, 3, 3)
    )


def _executable(unseen: Unseen) -> vm.Executable:
    example = [unseen.example]
    return vm.compile(amp.autocast(from_torch(unseen.module.eval(), example, dynamic=unseen.dynamic), example))


@pytest.fixture
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, code that is generated is an error."""

    def refuse(*arguments: object) -> None:
        raise AssertionError(f"code was generated: {arguments[0]}")

    def begin() -> None:
        for name in ("machine_code", "object_of"):
            monkeypatch.setattr(f"autocast.kernels.generate.{name}", refuse)

    return begin


@pytest.mark.parametrize("build", [_bert, _resnet, _region_head])
def test_sizes_never_seen_generate_no_code(
    build: Callable[[], Unseen], nothing_is_compiled: Callable[[], None]
) -> None:
    unseen = build()
    executable = _executable(unseen)
    nothing_is_compiled()
    chance = random.Random(0)
    for _ in range(CALLS):
        given = unseen.input(chance)
        got = executable(given)
        assert len(got[0] if isinstance(got, tuple) else got) == len(given)


def test_sizes_never_seen_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LIMIT", 2**24)
    layers = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
    unseen = Unseen(
        layers, torch.randn(100, 8), {"n": ("input", 0)}, lambda chance: torch.randn(chance.randint(500, 9000), 8)
    )
    executable = _executable(unseen)
    chance = random.Random(0)
    held = []
    for _ in range(CALLS):
        executable(unseen.input(chance))
        held.append(_resident())
    assert max(held[CALLS // 4 :]) - max(held[: CALLS // 4]) < 2**25


def _resident() -> int:
    """Bytes of this process's memory that are there."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
