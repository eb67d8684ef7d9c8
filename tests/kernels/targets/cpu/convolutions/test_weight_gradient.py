"""Gradients of convolutions' weights against float64, for every kind, dtype, number of tasks and instruction set."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import tvm

from autocast.kernels.specs.convolutions import Convolution, WeightGradient
from autocast.kernels.targets.cpu.convolutions.weight_gradient import weight_gradient
from tests.kernels.compiling import assembly_of, compile_kernels
from tests.kernels.targets.cpu.convolutions.test_kernel import ALL_AROUND, here, other_cpus
from tests.kernels.targets.cpu.dtypes import DTYPES, ROUNDING
from tests.kernels.targets.cpu.guards import Guarded
from tests.kernels.targets.cpu.products.cases import CPUS, target_of
from tests.kernels.targets.cpu.products.test_assembly import MULTIPLY, straight_loops

KINDS = {
    "three by three": Convolution(2, 7, 7, 32, 64, (3, 3), padding=ALL_AROUND),
    "channels and features that fill no vector": Convolution(2, 9, 8, 19, 21, (3, 3), padding=ALL_AROUND),
    "a first layer": Convolution(2, 29, 31, 3, 40, (7, 7), (2, 2), (3, 3, 3, 3)),
    "every second pixel": Convolution(3, 9, 11, 24, 72, (1, 1), (2, 2)),
    "padding on two sides, dilation": Convolution(2, 12, 10, 10, 20, (3, 2), (1, 2), (2, 0, 0, 1), (2, 3)),
    "stride and dilation": Convolution(1, 13, 15, 16, 16, (3, 3), (2, 3), ALL_AROUND, (3, 2)),
    "groups": Convolution(2, 6, 7, 36, 15, (3, 3), padding=ALL_AROUND, groups=3),
    "one axis": Convolution(2, 1, 50, 12, 18, (1, 5), (1, 2), (0, 2, 0, 2)),
    "a stride beyond the kernel": Convolution(2, 11, 11, 6, 8, (2, 2), (3, 3)),
    "bands of rows": Convolution(1, 70, 112, 16, 64, (3, 3), padding=ALL_AROUND),
}


def in_dtypes(spec: Convolution, data: str, adjoint: str) -> Convolution:
    return replace(spec, data_dtype=data, weight_dtype=adjoint, out_dtype=adjoint)


def exact(spec: Convolution, data: np.ndarray, adjoint: np.ndarray) -> np.ndarray:
    """The gradient in float64, tap by tap: (groups, channels of a group x taps, features of a group)."""
    top, left, bottom, right = spec.padding
    (sy, sx), (dy, dx), groups = spec.strides, spec.dilation, spec.groups
    batch, height, width, _ = adjoint.shape
    padded = np.pad(data.astype(np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    g = adjoint.astype(np.float64).reshape(batch, height, width, groups, -1)
    taps = []
    for i, j in np.ndindex(spec.kernel):
        y, x = i * dy, j * dx
        seen = padded[:, y : y + (height - 1) * sy + 1 : sy, x : x + (width - 1) * sx + 1 : sx]
        taps.append(np.einsum("nhwgc,nhwgf->gcf", seen.reshape(batch, height, width, groups, -1), g))
    return np.stack(taps, axis=2).reshape(WeightGradient(spec).shape)


def check(specs: list[Convolution], cpu: str, cores: int = 2, batch: int = 3) -> None:
    """Fail unless every element of every gradient is where it may be; one that was not written is not."""
    target, rng = target_of(cpu, cores), np.random.default_rng(0)
    kernels = {f"gradient{i}": weight_gradient(spec, target, f"gradient{i}") for i, spec in enumerate(specs)}
    module = compile_kernels(kernels, target)
    for i, spec in enumerate(specs):
        extents = (spec.batch or batch, spec.output_extent(0, spec.height), spec.output_extent(1, spec.width))
        data = rng.standard_normal((extents[0], spec.height, spec.width, spec.channels)).astype(DTYPES[spec.data_dtype])
        adjoint = rng.standard_normal((*extents, spec.features)).astype(DTYPES[spec.out_dtype])
        out = Guarded(np.full(WeightGradient(spec).shape, np.nan, np.float32))
        module[f"gradient{i}"](tvm.runtime.tensor(data), tvm.runtime.tensor(adjoint), out.tensor)
        expected = exact(spec, data, adjoint)
        size = exact(spec, np.abs(data), np.abs(adjoint))
        allowed = (extents[0] * extents[1] * extents[2] + 2) * ROUNDING["float32"] * size + 1e-30
        wrong = ~(np.abs(out.numpy() - expected) <= allowed)
        assert not wrong.any(), f"{spec}: {wrong.sum()} of {wrong.size} are off, the first at {np.argwhere(wrong)[0]}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_kind_of_weight_gradient(dtype: str) -> None:
    check([in_dtypes(spec, dtype, dtype) for spec in KINDS.values()], here)


def test_data_and_adjoint_may_be_stored_in_two_dtypes() -> None:
    spec = KINDS["three by three"]
    check([in_dtypes(spec, data, adjoint) for data in DTYPES for adjoint in DTYPES], here)


@other_cpus
def test_every_second_kind_on_every_other_instruction_set(cpu: str) -> None:
    kinds, dtypes = islice(KINDS.values(), CPUS.index(cpu) % 2, None, 2), [*DTYPES] * len(KINDS)
    check([in_dtypes(spec, dtype, dtype) for spec, dtype in zip(kinds, dtypes, strict=False)], cpu)


@pytest.mark.parametrize("cores", [1, 3])
def test_every_number_of_tasks_covers_the_whole_gradient(cores: int) -> None:
    check([in_dtypes(KINDS[kind], "bfloat16", "bfloat16") for kind in ("three by three", "groups")], here, cores)


def test_one_kernel_serves_any_batch() -> None:
    check([replace(spec, batch=None) for spec in KINDS.values()], here)


@pytest.mark.parametrize(("cpu", "dtype"), list(MULTIPLY))
def test_sums_stay_in_registers(cpu: str, dtype: str) -> None:
    target = target_of(cpu)
    spec = in_dtypes(Convolution(4, 28, 28, 128, 128, (3, 3), padding=ALL_AROUND), dtype, dtype)
    assembly = assembly_of({"main": weight_gradient(spec, target, "main")}, target)
    loops = [body for body in straight_loops(assembly) if sum(MULTIPLY[cpu, dtype] in line for line in body) >= 6]
    assert loops, "no innermost loop multiplies"
    for body in loops:
        spilled = [line for line in body if re.search(r"\(%rsp", line) and re.search(r"%[xyz]mm", line)]
        assert not spilled, f"{len(spilled)} of {len(body)} instructions, such as {spilled[0]}"
