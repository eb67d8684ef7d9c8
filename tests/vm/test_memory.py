"""Memory figures against what can be worked out by hand, and against what the process really takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch

import autocast
from autocast import vm
from autocast.model.model import get_param_size, get_peak_memory, trace_memory
from tests.vm.modules import allocating, dense, steps

X = torch.zeros(1024, 256)


def test_live_memory_follows_the_last_uses():
    trace = trace_memory(steps(), "cpu", [X])
    assert [step.name for step in trace] == ["step", "step", "step", "join"]
    assert [step.live for step in trace] == [1.0, 2.0, 3.0, 3.0]


def test_workspace_is_counted_where_it_is_used():
    assert [step.workspace for step in trace_memory(steps(), "cpu", [X])] == [0.0, 0.0, 0.0, 2.0]


def test_freed_blocks_of_equal_size_are_reused():
    assert [step.reserved for step in trace_memory(steps(), "cpu", [X])] == [1.0, 2.0, 3.0, 3.0]


def test_the_peak_is_the_sum_of_its_parts():
    trace = trace_memory(steps(), "cpu", [X])
    assert (trace.intermediates, trace.inputs, trace.params, trace.constants) == (5.0, 1.0, 0.0, 0.0)
    assert trace.peak_live == 5.0
    assert get_peak_memory(steps(), "cpu", [X]) == trace.peak == 6.0


def test_parameters_count_unless_they_are_left_out():
    model, inputs = dense(), [torch.zeros(8, 16), torch.tensor(0.0)]
    size = 16 * 32 * 4 / 2**20
    assert get_param_size(model) == size
    with_params = get_peak_memory(model, "cpu", inputs)
    assert with_params - get_peak_memory(model, "cpu", inputs, include_param=False) == pytest.approx(size)


def test_planned_storage_takes_the_upper_bound_and_outputs_what_they_need():
    small, large = (
        get_peak_memory(dense(bound=1024), "cpu", [torch.zeros(size, 16), torch.tensor(0.0)]) for size in (128, 1024)
    )
    outputs, inputs = 2 * (1024 - 128) * 32 * 4, (1024 - 128) * 16 * 4
    assert large - small == pytest.approx((outputs + inputs) / 2**20)


def test_memory_that_a_module_allocates_by_a_tuple_of_sizes_is_counted():
    assert get_peak_memory(allocating(), "cpu", [torch.ones(2**18)]) == 2.0


def test_steps_say_which_submodules_they_are_of():
    linear = torch.nn.Linear
    model = autocast.from_torch(torch.nn.Sequential(linear(4, 8), torch.nn.Softmax(-1), linear(8, 8)), (X[:2, :4],))
    trace = trace_memory(model, "cpu", [X[:2, :4]])
    assert [step.module for step in trace] == ["0", "1", "2"]
    assert "module" in str(trace) and "module" not in str(trace_memory(steps(), "cpu", [X]))


def test_the_trace_prints_as_a_table():
    text = str(trace_memory(steps(), "cpu", [X]))
    assert "peak 6.00 MiB" in text
    assert text.count("step") == 3
    assert vm.trace_memory is trace_memory


MEASURE = """
    import ctypes, json
    import transformers
    from autocast import amp, vm
    from autocast.testing import get_transformer_model_by_config, randint

    config = transformers.BertConfig(
        num_hidden_layers=1, hidden_size=256, num_attention_heads=4, intermediate_size=1024, vocab_size=8000
    )
    model, _ = get_transformer_model_by_config(config, 8, 128)
    inputs = [randint((8, 128), high=8000)[0]]

    def mebibytes(key):
        return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1]) / 1024

    for each in (model, amp.autocast(model)):
        executable = vm.compile(each)
        arguments = executable.arguments(inputs)
        ctypes.CDLL(None).malloc_trim(0)
        open("/proc/self/clear_refs", "w").write("5")  # resets VmHWM
        before = mebibytes("VmRSS")
        executable.run(arguments)
        print(json.dumps([mebibytes("VmHWM") - before, vm.trace_memory(executable, "cpu", inputs).intermediates]))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux's peak of resident memory")
def test_the_process_grows_by_what_the_plan_says():
    """A fresh process, whose heap returns freed blocks at once, so that growth is what one call takes."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURE)],
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines()[-2:]:  # in float32, and mixed
        measured, computed = json.loads(line)
        assert computed > 20
        assert computed == pytest.approx(measured, rel=0.1)
