"""Runs convolution and pooling kernels and the same in float64 numpy, for their tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm

from autocast.kernels.specs.convolutions import Convolution
from autocast.kernels.targets.cpu.convolutions.kernel import convolution
from autocast.kernels.targets.cpu.convolutions.weights import pack_weights
from tests.kernels.compiling import compile_kernels
from tests.kernels.targets.cpu.dtypes import DTYPES, ROUNDING, SMALLEST
from tests.kernels.targets.cpu.epilogues import evaluated
from tests.kernels.targets.cpu.guards import Guarded
from tests.kernels.targets.cpu.products.cases import target_of

Extents = tuple[int, int, int]


@dataclass
class Case:
    """A convolution with random operands; `extents` (batch, height, width) serve where its spec leaves them open."""

    spec: Convolution
    extents: Extents = (2, 7, 9)
    seed: int = 0

    def __post_init__(self) -> None:
        spec, rng = self.spec, np.random.default_rng(self.seed)
        known = (spec.batch, spec.height, spec.width)
        batch, height, width = (known or open_ for known, open_ in zip(known, self.extents, strict=True))
        out_shape = (batch, spec.output_extent(0, height), spec.output_extent(1, width), spec.features)

        def random(shape: tuple[int, ...], dtype: str) -> np.ndarray:
            return rng.standard_normal(shape).astype(DTYPES[dtype])

        self.data = random((batch, height, width, spec.channels), spec.data_dtype)
        self.weights = random(spec.weight_shape, spec.weight_dtype)
        self.extras = [
            random((spec.features,) if operand.per_column else out_shape, operand.dtype)
            for operand in spec.epilogue.operands
        ]
        self.out = np.full(out_shape, np.nan, DTYPES[spec.out_dtype])

    def sums(self, data: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The convolution of float64 numbers, tap by tap."""
        spec = self.spec
        (sy, sx), (dy, dx), (top, left, bottom, right) = spec.strides, spec.dilation, spec.padding
        batch, height, width, _ = data.shape
        groups = data.reshape(batch, height, width, spec.groups, -1)
        per_group = spec.features // spec.groups
        out_height, out_width = self.out.shape[1:3]
        if spec.transposed:
            grown = np.zeros((batch, out_height + top + bottom, out_width + left + right, spec.groups, per_group))
            kernels = weights.reshape(spec.groups, -1, per_group, *spec.kernel)
            for i, j in np.ndindex(spec.kernel):
                y, x = i * dy, j * dx
                added = np.einsum("nhwgc,gcf->nhwgf", groups, kernels[..., i, j])
                grown[:, y : y + (height - 1) * sy + 1 : sy, x : x + (width - 1) * sx + 1 : sx] += added
            return grown[:, top : top + out_height, left : left + out_width].reshape(self.out.shape)
        padded = np.pad(groups, ((0, 0), (top, bottom), (left, right), (0, 0), (0, 0)))
        kernels = weights.reshape(spec.groups, per_group, -1, *spec.kernel)
        total = np.zeros((batch, out_height, out_width, spec.groups, per_group))
        for i, j in np.ndindex(spec.kernel):
            y, x = i * dy, j * dx
            seen = padded[:, y : y + (out_height - 1) * sy + 1 : sy, x : x + (out_width - 1) * sx + 1 : sx]
            total += np.einsum("nhwgc,gfc->nhwgf", seen, kernels[..., i, j])
        return total.reshape(self.out.shape)

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """The output in float64, and how far from it each element may be: as for products, see there."""
        spec = self.spec
        data, weights = self.data.astype(np.float64), self.weights.astype(np.float64)
        length = spec.channels // spec.groups * spec.kernel[0] * spec.kernel[1]
        per_product = length * ROUNDING["float32"] + (2 * ROUNDING["bfloat16"] if spec.compute == "bfloat16" else 0)
        sums, error = self.sums(data, weights), per_product * self.sums(np.abs(data), np.abs(weights))
        exact, error = evaluated(spec.epilogue, sums, error, self.extras)
        return exact, error + ROUNDING[spec.out_dtype] * np.abs(exact) * 1.01 + SMALLEST[spec.out_dtype] + 1e-30


def outputs(cases: list[Case], cpu: str, cores: int = 2) -> list[np.ndarray]:
    """What the kernels of all cases, built as one module, compute: float64, of outputs that held NaN before."""
    target = target_of(cpu, cores)
    functions = {}
    numbers = {spec: i for i, spec in enumerate(dict.fromkeys(case.spec for case in cases))}
    for spec, i in numbers.items():
        functions[f"convolution{i}"] = convolution(spec, target, f"convolution{i}")
        functions[f"pack{i}"] = pack_weights(spec, target, f"pack{i}")
    module = compile_kernels(functions, target)
    results = []
    for case in cases:
        i = numbers[case.spec]
        written = functions[f"pack{i}"].params[-1].ty
        packed = tvm.runtime.tensor(
            np.full([int(size) for size in written.shape], -1, str(written.dtype))
        )  # NaN, as pairs of bfloat16
        module[f"pack{i}"](tvm.runtime.tensor(case.weights), packed)
        out = Guarded(case.out)
        operands = [*map(tvm.runtime.tensor, case.extras), out.tensor]
        module[f"convolution{i}"](tvm.runtime.tensor(case.data), packed, *operands)
        results.append(out.numpy().astype(np.float64))
    return results


def check(cases: list[Case], cpu: str, cores: int = 2) -> None:
    """Fail unless every element of every output is where it may be; one that was not written is not."""
    for case, got in zip(cases, outputs(cases, cpu, cores), strict=True):
        exact, allowed = case.expected()
        wrong = ~(np.abs(got - exact) <= allowed)
        assert not wrong.any(), (
            f"{case.spec} of {case.data.shape}: {wrong.sum()} of {wrong.size} elements are off, the first at "
            f"{np.argwhere(wrong)[0]}: got {got[wrong][0]}, expected {exact[wrong][0]} within {allowed[wrong][0]}"
        )
