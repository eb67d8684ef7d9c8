"""Kernels say whose place their results may take, and are right when they take it."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx

from autocast.kernels import detect_target
from autocast.kernels.specs.program import Program, ProgramBuilder
from autocast.kernels.state.in_place import sharing
from autocast.kernels.targets.cpu.elementwise.kernel import elementwise_kernel
from autocast.kernels.targets.cpu.rows.kernel import row_kernel
from autocast.kernels.targets.cpu.vector import streaming
from tests.kernels.compiling import assembly_of, compile_kernels
from tests.kernels.modules import error, random
from tests.kernels.targets.cpu.products.cases import runs_here

SHAPE = (37, 130)


def _pairs(kernel: tirx.PrimFunc) -> list[list[int]]:
    return [[int(place) for place in pair] for pair in kernel.attrs["autocast.in_place"]]


def _update() -> Program:
    """A step of momentum: the parameter, its momentum, and a low copy."""
    builder = ProgramBuilder(SHAPE)
    parameter, gradient, momentum = (builder.load(builder.argument(SHAPE, "float32"), SHAPE) for _ in range(3))
    rate = builder.load(builder.argument((), "float32"), ())
    velocity = builder.step("add", builder.step("multiply", momentum, builder.constant(0.9)), gradient)
    updated = builder.step("subtract", parameter, builder.step("multiply", velocity, rate))
    outputs = [(updated, "float32"), (velocity, "float32"), (updated, "bfloat16")]
    return builder.finish([(step, SHAPE, dtype) for step, dtype in outputs])


def test_an_update_is_written_over_what_it_replaces() -> None:
    target = detect_target()
    kernel = elementwise_kernel(_update(), target, "main")
    assert _pairs(kernel) == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    run = compile_kernels({"main": sharing(kernel, [(4, 0), (5, 2)])}, target)["main"]
    parameter, gradient, momentum = (random(SHAPE, "float32", seed) for seed in range(3))
    p, g, m = (tvm.runtime.tensor(array) for array in (parameter, gradient, momentum))
    low = tvm.runtime.tensor(random(SHAPE, "bfloat16"))
    run(p, g, m, tvm.runtime.tensor(np.float32(0.1)), low)
    velocity = 0.9 * momentum.astype("float64") + gradient
    assert error(m.numpy(), velocity) < 1e-7 and error(p.numpy(), parameter - 0.1 * velocity) < 1e-7
    assert error(low.numpy(), parameter - 0.1 * velocity) < 2.0**-8


@pytest.mark.parametrize("columns", [130, 4099])
def test_a_softmax_is_written_over_its_rows(columns: int) -> None:
    shape = (5, columns)
    builder = ProgramBuilder(shape)
    data = builder.load(builder.argument(shape, "bfloat16"), shape)
    weights = builder.step("exp", builder.step("subtract", data, builder.step("row_highest", data)))
    result = builder.step("divide", weights, builder.step("row_sum", weights))
    target = detect_target()
    kernel = row_kernel(builder.finish([(result, shape, "bfloat16")]), 1, target, "main")
    assert _pairs(kernel) == [[0, 0]]
    run = compile_kernels({"main": sharing(kernel, [(1, 0)])}, target)["main"]
    logits = random(shape, "bfloat16")
    rows = tvm.runtime.tensor(logits)
    run(rows)
    exact = np.exp(logits.astype("float64"))
    assert error(rows.numpy(), exact / exact.sum(-1, keepdims=True)) < 2.0**-8


@pytest.mark.skipif(not runs_here("x86-64-v3"), reason="narrow vectors are never stored past the caches")
def test_results_over_operands_stay_in_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "FAR_BYTES", 0)
    target = detect_target()
    kernel = elementwise_kernel(_update(), target, "main")
    for function, streams in ((kernel, True), (sharing(kernel, [(4, 0), (5, 2)]), False)):
        assembly = assembly_of({"main": function}, target)
        assert ("movnt" in assembly) == streams


def test_what_is_read_elsewhere_too_or_is_narrower_keeps_its_place() -> None:
    square = (16, 16)
    builder = ProgramBuilder((16, 16, 16))
    repeated = builder.argument(square, "float32")
    steps = [builder.load(repeated, (16, 16, 1)), builder.load(repeated, (1, 16, 16))]
    low = builder.load(builder.argument((16, 16, 16), "bfloat16"), (16, 16, 16))
    total = builder.step("add", builder.step("add", *steps), low)
    program = builder.finish([(total, (16, 16, 16), "float32")])
    assert _pairs(elementwise_kernel(program, detect_target(), "main")) == []


def test_what_a_later_sweep_reads_keeps_its_place() -> None:
    builder = ProgramBuilder(SHAPE)
    data = builder.load(builder.argument(SHAPE, "float32"), SHAPE)
    doubled = builder.step("multiply", data, builder.constant(2.0))
    centered = builder.step("subtract", data, builder.step("row_sum", data))
    program = builder.finish([(doubled, SHAPE, "float32"), (centered, SHAPE, "float32")])
    assert _pairs(row_kernel(program, 1, detect_target(), "main")) == [[1, 0]]
