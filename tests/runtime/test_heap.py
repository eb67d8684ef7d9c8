"""While torch computes for a model, memory that it frees is there for what it makes next."""

from __future__ import annotations

import gc
import resource
import sys

import pytest
import torch

import autocast
from autocast import vm
from autocast.runtime import heap

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")

#: More than glibc ever takes from its heap by itself: 48 MiB.
_ELEMENTS = 12 * 2**20


def _faults() -> int:
    """How many pages three tensors need that are made and freed one after another."""
    torch.ones(_ELEMENTS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        torch.ones(_ELEMENTS)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_memory_is_kept_until_the_last_who_wants_it_kept() -> None:
    heap.keep()
    heap.keep()
    heap.give_back()
    try:
        kept = _faults()
    finally:
        heap.give_back()
    assert kept < 100
    assert _faults() > kept


def test_a_model_that_torch_runs_keeps_memory_as_long_as_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(heap, "keep", lambda: said.append("keep"))
    monkeypatch.setattr(heap, "give_back", lambda: said.append("give back"))
    x = torch.randn(3, 4)
    executable = vm.compile(autocast.from_torch(torch.nn.Linear(4, 2).eval(), (x,)), mode="dynamic_hybrid")
    executable(x)
    assert "keep" in said
    executable.wait(300)
    executable(x)
    gc.collect()
    assert said == ["keep", "give back"]
