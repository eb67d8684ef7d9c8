"""RAF's profilers of kernels and of memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autocast.compat.raf as raf
from autocast.compat.raf.frontend import from_pytorch
from autocast.compat.raf.model.model import get_peak_memory, trace_memory
from autocast.compat.raf.testing import (
    run_vm_model,
)
from autocast.errors import InputError
from tests.compat.test_raf import SHAPES

pytestmark = pytest.mark.filterwarnings("ignore::autocast.errors.SlowDtypeWarning")


def test_kernels_become_events():
    profiler = raf.utils.profiler
    model, x = from_pytorch(nn.Linear(8, 8).eval(), SHAPES), torch.ones(4, 3, 8, 8)
    profiler.clear()
    profiler.start()
    run_vm_model(model, "cpu", [x])
    profiler.stop()
    run_vm_model(model, "cpu", [x])
    events = profiler.get()["traceEvents"]
    profiler.clear()
    assert [event["ph"] for event in events if event["name"] == events[0]["name"]] == ["B", "E"]
    assert profiler.get()["traceEvents"] == []


def test_the_memory_of_runs_is_noted_while_the_profiler_is_on():
    profiler = raf.utils.memory_profiler
    model, x = from_pytorch(nn.Linear(8, 8).eval(), SHAPES), torch.ones(4, 3, 8, 8)
    run_vm_model(model, "cpu", [x])
    profiler.reset()
    with pytest.raises(InputError, match=r"no run was noted; call start\(\)"):
        profiler.get_max_memory_info("cpu")
    profiler.start()
    run_vm_model(model, "cpu", [x])
    profiler.stop()
    run_vm_model(model, "cpu", [torch.ones(4, 3, 8, 8)])
    info = profiler.get_max_memory_info(raf.Device("cpu"))
    assert info["max_allocated"].value == get_peak_memory(model, "cpu", [x])
    assert info["max_used"].value == max(mib for _, mib in trace_memory(model, "cpu", [x]))
    assert profiler.get_memory_trace("cpu").count("peak") == 1
    profiler.reset()
