"""Replaying plans with control flow, calls of other functions, and sizes that depend on data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import vm
from autocast.runtime.profiling import VM_ROW

MIB = torch.zeros(512, 512)


@I.ir_module
class Branches:
    @R.function
    def main(small: R.Tensor((), "bool"), x: R.Tensor((512, 512), "float32")) -> R.Tensor((512, 512), "float32"):
        if small:
            y = R.exp(x)
        else:
            wide = R.concat((x, x, x), axis=0)
            low = R.sum(R.reshape(wide, (3, 512, 512)), axis=0)
            y = R.exp(low)
        return y


@I.ir_module
class Callers:
    @R.function(private=True)
    def twice(x: R.Tensor(("rows", 512), "float32")) -> R.Tensor(("rows", 512), "float32"):
        y = R.matmul(x, R.permute_dims(x))
        z = R.matmul(y, x)
        return z

    @R.function
    def main(x: R.Tensor((512, 512), "float32")) -> R.Tensor((512, 512), "float32"):
        cls = Callers
        a = cls.twice(x)
        b = cls.twice(a)
        return b


@I.ir_module
class Nonzero:
    @R.function
    def main(x: R.Tensor((512, 512), "float32")):
        y = R.nonzero(x)
        return y


def test_the_branch_that_takes_more_is_counted():
    trace = vm.trace_memory(Branches, "cpu", [torch.tensor(True), MIB])
    assert trace.intermediates >= 3.0
    assert len(trace) > 1  # the other branch has one kernel


@pytest.mark.parametrize("small", [True, False])
def test_either_branch_runs(small):
    x = torch.rand(512, 512) / 3
    expected = x.exp() if small else (3 * x).exp()
    torch.testing.assert_close(vm.compile(Branches)(torch.tensor(small), x), expected)


def test_kernels_of_called_functions_are_in_the_trace_with_the_sizes_of_the_call():
    trace = vm.trace_memory(Callers, "cpu", [MIB])
    products = [step for step in trace if "product" in step.name or "matmul" in step.name]
    assert len(products) == 4
    assert trace.unknown == 0
    assert trace.peak_live >= 3.0  # in the second call: its argument, y and z


def test_called_functions_are_profiled_by_their_kernels():
    report = vm.profile_vm_model(Callers, "cpu", [MIB], warmup=0, number=1, repeat=1)
    names = {row.name for row in report.operators}
    assert "twice" not in names
    assert VM_ROW in names
    assert sum(row.share for row in report.operators) == pytest.approx(1.0)


def test_operations_of_called_functions_are_counted_at_each_call():
    assert vm.calc_model_gflops(Callers, "cpu", [MIB]) == 4 * 2 * 512**3 / 1e9


def test_sizes_that_depend_on_data_are_said_to_be_unknown():
    trace = vm.trace_memory(Nonzero, "cpu", [MIB])
    assert trace.unknown == 1
    result = vm.compile(Nonzero)(np.eye(512, dtype="float32"))
    np.testing.assert_array_equal(result, np.stack([np.arange(512)] * 2))


def test_literal_tensors_are_counted_once():
    literal = tvm.relax.const(np.random.default_rng(0).random((512, 512), dtype="float32"))
    builder = tvm.relax.BlockBuilder()
    x = tvm.relax.Var("x", tvm.relax.TensorType((512, 512), "float32"))
    with builder.function("main", [x]):
        y = builder.emit(tvm.relax.op.matmul(x, literal))
        builder.emit_func_output(builder.emit(tvm.relax.op.matmul(y, literal)))
    assert vm.trace_memory(builder.get(), "cpu", [MIB]).constants == 1.0
