"""The pool of memory: nothing new in the steady state, and bounded where sizes vary."""

from __future__ import annotations

import resource

import pytest
import torch

from autocast import vm
from autocast.runtime import pool
from tests.vm.modules import dense, steps


@pytest.fixture
def cleared(monkeypatch):
    """The sizes of the outputs at the time of each release of the pool's unused blocks."""
    counts = []
    real = pool.function
    monkeypatch.setattr(pool, "varying_blocks", pool.VaryingBlocks())
    monkeypatch.setattr("autocast.runtime.executable.varying_blocks", pool.varying_blocks)

    def clear():
        counts.append(set(pool.varying_blocks._blocks))
        real("vm.builtin.memory_manager.clear")()

    monkeypatch.setattr(
        pool, "function", lambda name: clear if name == "vm.builtin.memory_manager.clear" else real(name)
    )
    return counts


def test_the_steady_state_takes_no_pages():
    executable = vm.compile(steps())
    arguments = executable.arguments([torch.zeros(1024, 256)])
    output = None
    for _ in range(4):
        output = executable.run(arguments)  # as callers do: the last output is still held while the next is computed
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        output = executable.run(arguments)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 50  # a call's tensors have 1,500 pages
    assert output is not None


def test_blocks_of_many_sizes_are_freed_beyond_a_limit(monkeypatch, cleared):
    monkeypatch.setattr(pool, "LIMIT", 8 * pool.PAGE)
    monkeypatch.setattr(pool, "CALLS", 1)
    executable = vm.compile(dense(bound=4096))
    weight = torch.from_dlpack(dense().params["w"])
    for rows in (32, 64, 32, 96, 128):  # each of two outputs has 1, 2, 1, 3 and 4 pages
        x = torch.randn(rows, 16)
        torch.testing.assert_close(executable(x, torch.tensor(0.0))[1], x @ weight)
    assert [{size // pool.PAGE for size in sizes} for sizes in cleared] == [{1, 2}, {3}]


def test_outputs_of_one_size_free_nothing(monkeypatch, cleared):
    monkeypatch.setattr(pool, "LIMIT", 1)
    executable = vm.compile(dense())
    for _ in range(3):
        executable(torch.randn(8, 16), torch.tensor(0.0))
    assert cleared == []
