"""Row kernels as programs: every element of every output is written and none beyond, whatever the row's length."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm

from autocast.kernels.specs.program import Program, ProgramBuilder
from autocast.kernels.targets.cpu.instruction_sets import instruction_set
from autocast.kernels.targets.cpu.rows.kernel import row_kernel
from autocast.kernels.targets.cpu.rows.plan import plan_sweeps
from autocast.kernels.targets.cpu.vector import streaming
from tests.kernels.compiling import assembly_of, compile_kernels
from tests.kernels.modules import EPSILON, error, random
from tests.kernels.targets.cpu.products.cases import CPUS, runs_here, target_of
from tests.kernels.targets.cpu.products.test_assembly import straight_loops


def _softmax_and_place(shape: tuple, dtype: str, *, row_dims: int = 1) -> Program:
    """Softmax of twice the rows, the place of the largest, and what is there."""
    builder = ProgramBuilder(shape)
    data = builder.load(builder.argument(shape, dtype), shape)
    data = builder.step("multiply", data, builder.constant(2.0))
    weights = builder.step("exp", builder.step("subtract", data, builder.step("row_highest", data)))
    result = builder.step("divide", weights, builder.step("row_sum", weights))
    rows = shape[:-row_dims]
    outputs = [(result, shape, dtype)]
    if row_dims == 1:
        place = builder.step("row_argmax", data)
        outputs += [(place, rows, "int64"), (builder.step("row_pick", result, place), (*rows, 1), "float32")]
    return builder.finish(outputs)


def _poisoned(shape: tuple, dtype: str) -> tuple[torch.Tensor, tvm.runtime.Tensor]:
    """Memory full of NaN (or -1) with one element more than a tensor of `shape` at its start, and that tensor."""
    torch_dtype = getattr(torch, dtype)
    poison = float("nan") if torch_dtype.is_floating_point else -1
    memory = torch.full((int(np.prod(shape)) + 1,), poison, dtype=torch_dtype)
    return memory, tvm.runtime.from_dlpack(memory[:-1].reshape(shape))


@pytest.mark.parametrize("cpu", [cpu for cpu in CPUS if runs_here(cpu)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("streams", [False, True])
def test_every_element_is_written_and_none_beyond(
    cpu: str, dtype: str, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if streams:
        monkeypatch.setattr(streaming, "FAR_BYTES", 0)
    target = target_of(cpu)
    shapes = [(1, 512), (40, 512), (40, 1000)] if streams else [(3, 1), (5, 21), (1, 64), (2, 257), (40, 1000)]
    kernels = {f"f{i}": row_kernel(_softmax_and_place(s, dtype), 1, target, f"f{i}") for i, s in enumerate(shapes)}
    module = compile_kernels(kernels, target)
    far = streaming.streamed([((40, 1000), dtype)], instruction_set(target).lanes)
    if dtype == "float32":  # LLVM narrows while it stores, where no instruction makes bfloat16 of float32
        assert ("movnt" in module.inspect_source("asm")) == bool(far)
    for name, shape in zip(kernels, shapes, strict=True):
        x = random(shape, dtype)
        rows = shape[:-1]
        outputs = [_poisoned(shape, dtype), _poisoned(rows, "int64"), _poisoned((*rows, 1), "float32")]
        module[name](tvm.runtime.tensor(x), *[tensor for _, tensor in outputs])
        wide = 2 * x.astype("float64")
        expected = np.exp(wide - wide.max(-1, keepdims=True))
        expected /= expected.sum(-1, keepdims=True)
        got, place, there = (memory.double().numpy() for memory, _ in outputs)
        assert np.isnan(got[-1]) and place[-1] == -1 and np.isnan(there[-1])
        assert error(got[:-1].reshape(shape), expected) < 2 * EPSILON[dtype] + 2e-7, shape
        np.testing.assert_array_equal(place[:-1], wide.argmax(-1))
        np.testing.assert_allclose(there[:-1], expected.max(-1), rtol=1e-6)


def test_labels_that_name_no_column_pick_zero() -> None:
    builder = ProgramBuilder((4, 30))
    data = builder.load(builder.argument((4, 30), "float32"), (4, 30))
    label = builder.load(builder.argument((4, 1), "int64"), (4, 1))
    program = builder.finish([(builder.step("row_pick", data, label), (4,), "float32")])
    target = target_of("x86-64")
    kernel = compile_kernels({"main": row_kernel(program, 1, target, "main")}, target)["main"]
    x, out = random((4, 30), "float32"), tvm.runtime.tensor(np.full(4, np.nan, "float32"))
    kernel(tvm.runtime.tensor(x), tvm.runtime.tensor(np.array([[29], [-100], [0], [30]])), out)
    np.testing.assert_array_equal(out.numpy(), [x[0, 29], 0, x[2, 0], 0])


def test_sweeps_end_where_results_of_reductions_are_needed() -> None:
    plan = plan_sweeps(_softmax_and_place((8, 1000), "float32"), 1, frozenset(), near=True)
    heads = [step[0] for step in _softmax_and_place((8, 1000), "float32").steps]
    assert [[heads[step] for step in sweep.reductions] for sweep in plan.sweeps] == [
        ["row_highest", "row_argmax"],
        ["row_sum"],
        [],
    ]
    # An exponential takes longer to compute again than to load; what it is computed from does not.
    assert [[heads[step] for step in sweep.kept] for sweep in plan.sweeps] == [[], ["exp"], []]
    assert [sweep.outputs for sweep in plan.sweeps] == [[], [], [0]]


@pytest.mark.parametrize("cpu", ["cooperlake", "x86-64-v3"])
def test_sums_of_a_row_stay_in_registers(cpu: str) -> None:
    builder = ProgramBuilder((64, 4000))
    data = builder.load(builder.argument((64, 4000), "bfloat16"), (64, 4000))
    mean = builder.step("divide", builder.step("row_sum", data), builder.step("length"))
    centered = builder.step("subtract", data, mean)
    squares = builder.step("row_sum", builder.step("multiply", centered, centered))
    target = target_of(cpu)
    function = row_kernel(builder.finish([(squares, (64,), "float32")]), 1, target, "main")
    assembly = assembly_of({"main": function}, target)
    loops = [
        body for body in straight_loops(assembly) if sum("vaddps" in line or "vfmadd" in line for line in body) >= 4
    ]
    assert loops
    for body in loops:
        assert not [line for line in body if "%rsp" in line and ("ymm" in line or "zmm" in line)]
