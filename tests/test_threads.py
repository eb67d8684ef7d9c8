"""Threads that import models, or call a wrapped module for the first time, at once: torch traces for one at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import autocast

THREADS = 4


@pytest.fixture(autouse=True)
def _threads_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


class Deviating(nn.Module):
    """A layer whose gradient stops at a part of it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, size), nn.LayerNorm(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.layer(x)).relu()
        with torch.no_grad():
            g = h.detach().mean(0, keepdim=True)
        return (h + g).diff(dim=-1)


def _at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def test_threads_import_models_one_after_another() -> None:
    modules, x = [Deviating(8 + size).eval() for size in range(THREADS)], torch.randn(5, 8)

    def imported(module: nn.Module) -> torch.Tensor:
        return autocast.to_torch(autocast.from_torch(module, (x,), dynamic={"rows": (0, 0, 2, 9)}))(x)

    for result, module in zip(_at_once([partial(imported, module) for module in modules]), modules, strict=True):
        torch.testing.assert_close(result, module(x))


@pytest.mark.filterwarnings("ignore::autocast.errors.ReimportWarning")
def test_threads_make_the_first_calls_of_a_wrapped_module() -> None:
    module = Deviating(8).eval()
    wrapped = autocast.wrap(module, policy="mp0")
    inputs = [torch.randn(rows, 8) for rows in (2, 3, 6, 9)]

    def called(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            return [wrapped(x) for _ in range(3)]

    for results, x in zip(_at_once([partial(called, x) for x in inputs]), inputs, strict=True):
        for result in results:
            torch.testing.assert_close(result, Deviating.forward(module, x), atol=1e-5, rtol=1e-5)
