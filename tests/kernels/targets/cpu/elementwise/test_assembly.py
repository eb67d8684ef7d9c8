"""The generated machine code: what is computed for an element stays in registers."""

from __future__ import annotations

import re

import pytest

from autocast.kernels.specs.program import ProgramBuilder
from autocast.kernels.targets.cpu.elementwise.kernel import elementwise_kernel
from tests.kernels.compiling import assembly_of
from tests.kernels.targets.cpu.products.cases import CPUS, target_of
from tests.kernels.targets.cpu.products.test_assembly import straight_loops


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("function", ["relu", "exp", "log", "tanh", "sigmoid", "erf", "gelu", "softplus"])
def test_loops_do_not_touch_the_stack(function: str, cpu: str, dtype: str) -> None:
    builder = ProgramBuilder((1024, 3072))
    x = builder.load(builder.argument((1024, 3072), dtype), (1024, 3072))
    bias = builder.load(builder.argument((3072,), dtype), (3072,))
    program = builder.finish([(builder.step(function, builder.step("add", x, bias)), (1024, 3072), dtype)])
    kernel = elementwise_kernel(program, target_of(cpu), "main")
    assembly = assembly_of({"main": kernel}, target_of(cpu))
    frame = r"\(%r[sb]p" if "movq\t%rsp, %rbp" in assembly else r"\(%rsp"
    loops = [body for body in straight_loops(assembly) if any("mm" in line for line in body)]
    if "vfpclassps" in assembly:  # loops branch to where they round subnormal numbers
        loops = [[line for line in assembly.splitlines() if "%zmm" in line]]
    assert loops, "no loop computes vectors"
    for body in loops:
        spilled = [line for line in body if re.search(frame, line) and re.search(r"%[xyz]mm", line)]
        assert not spilled, f"{len(spilled)} of {len(body)} instructions use the stack, such as {spilled[0]}"
