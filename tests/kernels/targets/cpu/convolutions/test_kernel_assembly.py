"""The generated machine code of convolutions: sums stay in registers in the innermost loops."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from autocast.kernels.specs.convolutions import Convolution
from autocast.kernels.targets.cpu.convolutions.kernel import convolution
from tests.kernels.compiling import assembly_of
from tests.kernels.targets.cpu.epilogues import epilogue
from tests.kernels.targets.cpu.products.cases import target_of
from tests.kernels.targets.cpu.products.test_assembly import MULTIPLY, straight_loops

ALL_AROUND = (1, 1, 1, 1)
SPECS = {
    "first layer": Convolution(4, 224, 224, 3, 64, (7, 7), (2, 2), (3, 3, 3, 3)),
    "three by three": Convolution(4, 56, 56, 64, 64, (3, 3), padding=ALL_AROUND),
    "two images side by side": Convolution(4, 7, 7, 512, 512, (3, 3), padding=ALL_AROUND),
    "any size": Convolution(None, None, None, 64, 72, (3, 3), (2, 2), ALL_AROUND),
    "each channel on its own": Convolution(4, 56, 56, 144, 144, (3, 3), padding=ALL_AROUND, groups=144),
}


@pytest.mark.parametrize(("cpu", "dtype"), list(MULTIPLY))
def test_sums_stay_in_registers(cpu: str, dtype: str) -> None:
    target = target_of(cpu)
    for name, spec in SPECS.items():
        finish = epilogue(bias="float32", activation="relu", residual=dtype, residual_first=True)
        spec = replace(spec, data_dtype=dtype, weight_dtype=dtype, out_dtype=dtype, epilogue=finish)
        assembly = assembly_of({"main": convolution(spec, target, "main")}, target)
        # The depthwise kernel widens bfloat16 data and multiplies them in float32.
        multiply = MULTIPLY[cpu, "float32" if spec.groups > 1 else dtype]
        loops = [body for body in straight_loops(assembly) if sum(multiply in line for line in body) >= 6]
        assert loops, f"{name}: no innermost loop multiplies"
        frame = r"\(%r[sb]p" if "movq\t%rsp, %rbp" in assembly else r"\(%rsp"
        for body in loops:
            spilled = [line for line in body if re.search(frame, line) and re.search(r"%[xyz]mm", line)]
            assert not spilled, f"{name}: {len(spilled)} of {len(body)} instructions, such as {spilled[0]}"
