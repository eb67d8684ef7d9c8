"""While torch computes for a model, memory that it frees is there for what it makes next."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys

import pytest
import torch

import autocast
from autocast import vm
from autocast.runtime import heap

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's heap")

#: Pages that twenty tensors need, made and freed one after another, before and while what is freed is kept. Each has
#: 48 MiB, more than glibc ever takes from its heap by itself.
_PROGRAM = """
import resource
import torch
from autocast.runtime import heap

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(12 * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults())
heap.keep()
heap.keep()
heap.give_back()
print(faults())
"""


def test_memory_is_kept_until_the_last_who_wants_it_kept() -> None:
    said = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True).stdout
    before, kept = map(int, said.split())
    assert kept < before / 2


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
