"""Pooling against float64: windows, padding, counts, adaptive outputs, sizes known or not, instruction sets."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import tvm

from autocast.errors import UnsupportedError
from autocast.kernels.specs.convolutions import Pooling
from autocast.kernels.targets.cpu.convolutions.pooling import pooling
from tests.kernels.compiling import compile_kernels
from tests.kernels.targets.cpu.dtypes import DTYPES, ROUNDING
from tests.kernels.targets.cpu.guards import Guarded
from tests.kernels.targets.cpu.products.cases import CPUS, runs_here, target_of

needs = {cpu: pytest.mark.skipif(not runs_here(cpu), reason=f"this machine cannot run {cpu} code") for cpu in CPUS}
every_cpu = pytest.mark.parametrize("cpu", [pytest.param(cpu, marks=needs[cpu]) for cpu in CPUS])
here = next(cpu for cpu in CPUS if runs_here(cpu))

SPECS = (
    Pooling("max", 2, 11, 9, 64, (3, 3), (2, 2), padding=(1, 1, 1, 1)),
    Pooling("max", 2, 11, 9, 5, (2, 3), (1, 2), (2, 1), padding=(1, 0, 0, 1)),
    Pooling("max", 1, 12, 10, 17, (3, 2), (2, 3), ceil_mode=True),
    Pooling("average", 2, 11, 9, 33, (3, 3), (2, 2), padding=(1, 1, 1, 1)),
    Pooling("average", 2, 11, 9, 130, (3, 3), (1, 1), padding=(1, 1, 1, 1), count_include_pad=True),
    Pooling("average", 2, 10, 9, 33, (3, 4), (2, 3), padding=(1, 1, 1, 1), ceil_mode=True, count_include_pad=True),
    Pooling("average", 1, 2, 2, 16, (32, 32), (32, 32), ceil_mode=True, count_include_pad=True),
    Pooling("average", 3, 7, 7, 65, adaptive=(1, 1)),
    Pooling("average", 2, 10, 7, 20, adaptive=(3, 4)),
    Pooling("max", 2, 10, 7, 20, adaptive=(3, 4)),
)


def windows(spec: Pooling, axis: int, extent: int, outputs: int) -> list[list[int]]:
    """The data's indices that each output along an axis sees."""
    if spec.adaptive is not None:
        return [[*range(i * extent // outputs, -(-(i + 1) * extent // outputs))] for i in range(outputs)]
    begins = (i * spec.strides[axis] - spec.padding[axis] for i in range(outputs))
    taps = ([begin + t * spec.dilation[axis] for t in range(spec.window[axis])] for begin in begins)
    return [[i for i in indices if 0 <= i < extent] for indices in taps]


def _size(spec: Pooling, axis: int, extent: int, index: int) -> int:
    """How many elements of a window are in the padded data."""
    padded = extent + spec.padding[axis] + spec.padding[axis + 2]
    return len(range(index * spec.strides[axis], padded, spec.dilation[axis])[: spec.window[axis]])


def expected(spec: Pooling, data: np.ndarray, out_shape: tuple[int, ...]) -> np.ndarray:
    """The output in float64."""
    out = np.empty(out_shape)
    rows, columns = (windows(spec, axis, data.shape[axis + 1], out_shape[axis + 1]) for axis in (0, 1))
    for y, taps_y in enumerate(rows):
        for x, taps_x in enumerate(columns):
            seen = data[:, taps_y][:, :, taps_x].astype(np.float64)
            if spec.kind == "max":
                out[:, y, x] = seen.max(axis=(1, 2))
            else:
                sizes = [_size(spec, axis, data.shape[axis + 1], (y, x)[axis]) for axis in (0, 1)]
                whole = math.prod(sizes) if spec.count_include_pad else seen.shape[1] * seen.shape[2]
                out[:, y, x] = seen.sum(axis=(1, 2)) / whole
    return out


def run(spec: Pooling, data: np.ndarray, cpu: str) -> np.ndarray:
    """What the kernel computes: float64, in memory that held NaN before."""
    target = target_of(cpu)
    out_shape = (data.shape[0], *(spec.output_extent(axis, data.shape[axis + 1]) for axis in (0, 1)), spec.channels)
    kernel = compile_kernels({"main": pooling(spec, target, "main")}, target)["main"]
    out = Guarded(np.full(out_shape, np.nan, DTYPES[spec.out_dtype]))
    kernel(tvm.runtime.tensor(data), out.tensor)
    return out.numpy().astype(np.float64)


def random(spec: Pooling, extents: tuple[int, int, int]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((*extents, spec.channels)).astype(DTYPES[spec.data_dtype])


def check(spec: Pooling, cpu: str = here, extents: tuple[int, int, int] | None = None) -> None:
    data = random(spec, extents or (spec.batch or 1, spec.height or 1, spec.width or 1))
    got = run(spec, data, cpu)
    exact = expected(spec, data, got.shape)
    # Sums of at most 100 numbers about 1.
    sums = 0.0 if spec.kind == "max" else 100 * ROUNDING["float32"]
    assert (np.abs(got - exact) <= sums + 1.01 * ROUNDING[spec.out_dtype] * np.abs(exact)).all()


@every_cpu
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_pooling_equals_float64(cpu: str, spec: Pooling) -> None:
    check(spec, cpu)


@pytest.mark.parametrize(("data_dtype", "out_dtype"), [("bfloat16", "bfloat16"), ("float16", "float32")])
@pytest.mark.parametrize("spec", [SPECS[1], SPECS[3]], ids=str)
def test_pooling_widens_and_narrows(spec: Pooling, data_dtype: str, out_dtype: str) -> None:
    check(replace(spec, data_dtype=data_dtype, out_dtype=out_dtype))


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[3], SPECS[7]], ids=str)
def test_one_kernel_serves_images_of_any_size(spec: Pooling) -> None:
    check(replace(spec, batch=None, height=None, width=None), extents=(3, 9, 14))


def test_a_nan_is_the_largest_of_its_channel_only() -> None:
    data = random(SPECS[0], (2, 11, 9))
    data[0, 4, 4, 7] = np.nan
    data[1, 4, 4, 7] = -np.inf
    got = run(SPECS[0], data, here)
    exact = expected(SPECS[0], data, got.shape)
    assert np.isnan(exact).sum() == np.isnan(got).sum() > 0
    np.testing.assert_array_equal(got, exact)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "median"}, "Pooling.kind: got 'median', expected one of max, average"),
        ({"strides": (0, 1)}, r"Pooling.strides: got \(0, 1\), expected at least 1"),
        ({"data_dtype": "int8"}, "Pooling.data_dtype: got 'int8'"),
    ],
)
def test_illegal_pooling_names_what_is_legal(arguments: dict, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        replace(SPECS[0], **arguments)
