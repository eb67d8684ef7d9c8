"""Latency reports: RAF's contract, operators, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
import tvm

import autocast
from autocast import amp
from autocast.errors import InputError
from autocast.runtime.profiling import VM_ROW
from autocast.training import MSE, SGD, training_step
from autocast.vm import compile, profile_vm_model, run_vm_model
from tests.vm.modules import dense, square, steps

X = torch.zeros(1024, 256)


@pytest.fixture(scope="module")
def report():
    return profile_vm_model(steps(), "cpu", [X], opt_level=3, warmup=1, number=3, repeat=4)


def test_the_report_is_a_sequence_of_repeat_latencies(report):
    assert len(report) == 4
    assert all(isinstance(latency, float) and latency > 0 for latency in report)
    assert report[0] == report.latencies[0]
    assert report[1:3] == report.latencies[1:3]


def test_median_and_minimum_come_from_the_latencies(report):
    ordered = sorted(report)
    assert report.minimum == ordered[0]
    assert report.median == (ordered[1] + ordered[2]) / 2


def test_operators_say_how_often_they_ran_and_what_they_moved(report):
    rows = {row.name: row for row in report.operators}
    assert set(rows) == {"step", "join", VM_ROW}
    assert (rows["step"].calls, rows["join"].calls) == (3, 1)
    assert (rows["step"].bytes, rows["join"].bytes) == (3 * 2 * 2**20, 3 * 2**20)


def test_operations_are_known_where_the_kernel_tells_them(report):
    rows = {row.name: row for row in report.operators}
    assert rows["step"].flops == 3 * 1024 * 256
    assert rows["join"].flops is None


def test_operators_sum_to_the_instrumented_run_slowest_first(report):
    assert sum(row.total for row in report.operators) == pytest.approx(report.instrumented, rel=1e-6)
    assert sum(row.share for row in report.operators) == pytest.approx(1.0)
    assert [row.total for row in report.operators] == sorted((row.total for row in report.operators), reverse=True)


def test_the_report_is_json(report):
    values = json.loads(report.to_json())
    assert values["latencies"] == list(report)
    assert values["median"] == report.median
    assert {row["name"] for row in values["operators"]} == {"step", "join", VM_ROW}


def test_the_report_prints_as_a_table(report):
    text = str(report)
    assert f"median {report.median:.3f} ms" in text
    for row in report.operators:
        assert f"{row.total:.3f}" in text


def test_a_models_parameters_are_added_by_itself():
    report = profile_vm_model(dense(), "cpu", [torch.zeros(8, 16), torch.tensor(0.0)], warmup=0, number=1, repeat=1)
    assert len(report) == 1


def test_an_executable_is_profiled_as_it_is():
    executable = compile(square("float32"), opt_level=0)
    report = profile_vm_model(executable, "cpu", [torch.ones(3, 5)], warmup=0, number=1, repeat=2)
    (kernel,) = {row.name for row in report.operators} - {VM_ROW}
    assert "multiply" in kernel


@pytest.mark.parametrize("counts", [{"warmup": -1}, {"number": 0}, {"repeat": 0}, {"number": 1.5}])
def test_counts_that_measure_nothing_are_refused(counts):
    (name,) = counts
    with pytest.raises(InputError, match=f"profile_vm_model: {name} is"):
        profile_vm_model(square("float32"), "cpu", [torch.ones(3, 5)], **counts)


def test_inputs_that_do_not_fit_are_refused_before_anything_runs():
    with pytest.raises(InputError, match="got 0 inputs, expected 1"):
        profile_vm_model(square("float32"), "cpu", [])


def test_run_vm_model_returns_the_outputs():
    assert torch.equal(run_vm_model(square("float32"), "cpu", [torch.full((3, 5), 3.0)]), torch.full((3, 5), 9.0))


def test_a_dtype_that_is_only_stored_is_noted():
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
    executable = compile(square("bfloat16"), target=target)
    report = profile_vm_model(executable, "cpu", [torch.ones(3, 5, dtype=torch.bfloat16)], warmup=0, number=1, repeat=1)
    assert report.notes == executable.program.notes
    assert "bfloat16 is only a storage format on x86-64 (generic)" in str(report)
    assert compile(square("float32"), target=target).program.notes == ()


def _layers() -> torch.nn.Module:
    torch.manual_seed(0)
    block = [torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.LayerNorm(32)) for _ in range(3)]
    return torch.nn.Sequential(*block, torch.nn.Linear(32, 8))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_kernel_says_which_submodules_it_works_for(dtype: str) -> None:
    x = torch.randn(16, 32)
    model = autocast.from_torch(_layers(), (x,))
    model = model if dtype == "float32" else amp.autocast(model, dtype=dtype)
    report = profile_vm_model(model, args=[x], warmup=0, number=1, repeat=1)

    def modules(kind: str) -> set[str]:
        return {module for row in report.operators if row.name.startswith(kind) for module in row.modules}

    assert modules("product") == {"0.0", "1.0", "2.0", "3"} and modules("layer_norm") == {"0.1", "1.1", "2.1"}
    assert modules(VM_ROW) == set()
    times = report.by_module(1)
    assert set(times) == {"0", "1", "2", "3", ""}
    assert sum(times.values()) == pytest.approx(sum(row.total for row in report.operators))
    assert " module " in str(report)


def test_a_backward_kernel_names_the_submodule_of_its_forward() -> None:
    x, y = torch.randn(16, 32), torch.randn(16, 8)
    step = training_step(autocast.from_torch(_layers().train(), (x,)), MSE(), SGD())
    report = profile_vm_model(step, args=[x, y, torch.tensor(0.1)], warmup=0, number=1, repeat=1)
    times = report.by_module(1)
    assert all(times[name] > 0 for name in ("0", "1", "2", "3"))
    assert len([row for row in report.operators if "3" in row.modules]) > 2  # the product, and those of its gradients
