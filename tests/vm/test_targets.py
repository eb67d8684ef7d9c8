"""Whole models compute the same, within tolerance, whatever instructions they are compiled to."""

from __future__ import annotations

import pytest
import torch

from autocast import amp, vm
from autocast.kernels.targets.cpu.instruction_sets import cores, detect_target
from tests.architectures import ARCHITECTURES, imported
from tests.kernels.targets.cpu.emulation import running_code_for
from tests.kernels.targets.cpu.products.cases import CPUS, target_of

#: Largest relative error (Frobenius norm, against float64) by AMP dtype; None is float32. A rounding of the AMP dtype
#: (2**-9, 2**-12 of a value on average) for each of the few low-precision results on the longest path of these models.
TOLERANCE = {None: 1e-5, "bfloat16": 4 * 2.0**-8, "float16": 4 * 2.0**-11}


def relative_error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.double() - exact).norm() / exact.norm())


#: The first two differ from the third in how they multiply bfloat16.
_RUNS = [(name, dtype, cpu) for name, dtype in (("bert", None), ("resnet", "float16")) for cpu in CPUS[2:]]
_RUNS += [("bert", "bfloat16", cpu) for cpu in CPUS]


@pytest.mark.parametrize(("name", "dtype", "cpu"), _RUNS, ids=str)
def test_every_instruction_set_computes_the_same(name: str, dtype: str | None, cpu: str) -> None:
    architecture = ARCHITECTURES[name]()
    model = imported(name) if dtype is None else amp.autocast(imported(name), dtype=dtype)
    target = target_of(cpu, cores(detect_target()))
    with running_code_for(target):
        executable = vm.compile(model, target=target)
        outputs = executable(*architecture.args)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else outputs
    exact = ARCHITECTURES[name]()
    exact.module.double()
    inputs = [value.double() if value.is_floating_point() else value for value in exact.args]
    for output, expected in zip(outputs, exact.reference(*inputs), strict=True):
        assert relative_error(output, expected) < TOLERANCE[dtype]
