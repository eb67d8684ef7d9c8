"""Convolutions against float64, for every kind, dtype, epilogue, extent known or not, and instruction set."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autocast.errors import UnsupportedError
from autocast.kernels.specs.convolutions import Convolution
from autocast.kernels.targets.cpu.convolutions.kernel import convolution
from tests.kernels.compiling import compile_kernels
from tests.kernels.targets.cpu.convolutions.cases import Case, check, outputs
from tests.kernels.targets.cpu.dtypes import DTYPES
from tests.kernels.targets.cpu.epilogues import ACTIVATIONS, epilogue
from tests.kernels.targets.cpu.products.cases import CPUS, runs_here, target_of

needs = {cpu: pytest.mark.skipif(not runs_here(cpu), reason=f"this machine cannot run {cpu} code") for cpu in CPUS}
every_cpu = pytest.mark.parametrize("cpu", [pytest.param(cpu, marks=needs[cpu]) for cpu in CPUS])
here = next(cpu for cpu in CPUS if runs_here(cpu))
other_cpus = pytest.mark.parametrize("cpu", [pytest.param(cpu, marks=needs[cpu]) for cpu in CPUS if cpu != here])

ALL_AROUND = (1, 1, 1, 1)
BIAS_RELU = epilogue(bias="float32", activation="relu")


def in_dtype(spec: Convolution, dtype: str) -> Convolution:
    return replace(spec, data_dtype=dtype, weight_dtype=dtype, out_dtype=dtype)


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    """Any convolution, of small images."""
    pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, strides, dilation = draw(pairs), draw(pairs), draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2)]))
    groups, transposed = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([False, False, True]))
    data, weight = draw(st.sampled_from(list(DTYPES))), draw(st.sampled_from(list(DTYPES)))
    extents = draw(st.integers(1, 3)), draw(st.integers(7, 12)), draw(st.integers(7, 12))
    batch, height, width = (draw(st.sampled_from([extent, extent, extent, None])) for extent in extents)
    padding = [draw(st.integers(0, 2)) for _ in range(4)]
    if transposed:  # more than the kernel reaches would cut off what no data adds to
        padding = [min(cut, kernel[i % 2] - 1) for i, cut in enumerate(padding)]
    spec = Convolution(
        batch,
        height,
        width,
        channels=groups * draw(st.sampled_from([1, 2, 3, 5, 8, 16])),
        features=groups * draw(st.sampled_from([1, 2, 7, 16, 17, 33, 64])),
        kernel=kernel,
        strides=strides,
        padding=(padding[0], padding[1], padding[2], padding[3]),
        dilation=dilation,
        groups=groups,
        data_dtype=data,
        weight_dtype=weight,
        out_dtype=draw(st.sampled_from(list(DTYPES))),
        transposed=transposed,
        output_padding=(strides[0] - 1, 0) if transposed else (0, 0),
        compute=draw(st.sampled_from([None, "bfloat16"])) if "float16" not in (data, weight) else None,
        epilogue=epilogue(
            scale=draw(st.sampled_from([None, 0.5])),
            bias=draw(st.sampled_from([None, *DTYPES])),
            activation=draw(st.sampled_from(list(ACTIVATIONS))),
            residual=draw(st.sampled_from([None, *DTYPES])),
            residual_first=draw(st.booleans()),
            gate=draw(st.sampled_from([None, None, *DTYPES])),
        ),
    )
    return Case(spec, extents)


@every_cpu
@settings(max_examples=2, deadline=None, derandomize=True)
@given(cases=st.lists(convolutions(), min_size=3, max_size=3))
def test_any_convolution_equals_float64(cpu: str, cases: list[Case]) -> None:
    check(cases, cpu)


#: Convolutions that take different ways through the generator.
KINDS = {
    "rows and columns of the kernel left out": Convolution(4, 7, 7, 32, 64, (3, 3), padding=ALL_AROUND),
    "tiles at three places of a row": Convolution(1, 5, 56, 8, 32, (3, 3), padding=ALL_AROUND),
    "odd runs of a first layer": Convolution(2, 29, 31, 3, 40, (7, 7), (2, 2), (3, 3, 3, 3)),
    "a product over pixels": Convolution(3, 9, 11, 24, 72, (1, 1)),
    "a product over every second pixel": Convolution(3, 9, 11, 24, 72, (1, 1), (2, 2)),
    "padding on two sides, dilation": Convolution(2, 12, 10, 10, 20, (3, 2), (1, 2), (2, 0, 0, 1), (2, 3)),
    "groups of an odd size": Convolution(2, 6, 7, 9, 15, (3, 3), padding=ALL_AROUND, groups=3),
    "one axis": Convolution(2, 1, 50, 12, 18, (1, 5), (1, 2), (0, 2, 0, 2)),
    "a stride beyond the kernel": Convolution(2, 11, 11, 6, 8, (2, 2), (3, 3)),
    "each channel on its own": Convolution(2, 9, 21, 64, 64, (3, 3), padding=ALL_AROUND, groups=64),
    "each channel on its own, an odd number": Convolution(2, 9, 21, 21, 21, (3, 5), (2, 2), (1, 2, 0, 1), (2, 1), 21),
    "transposed": Convolution(2, 6, 5, 12, 10, (4, 4), (2, 2), ALL_AROUND, transposed=True),
    "transposed, with gaps": Convolution(2, 6, 5, 6, 8, (1, 2), (2, 3), transposed=True, output_padding=(1, 0)),
    "transposed, to every second pixel": Convolution(8, 5, 4, 32, 16, (1, 1), (2, 2), transposed=True),
    "sums that are cut along k": Convolution(2, 6, 5, 48, 72, (3, 3), padding=ALL_AROUND),
    "sums of blocks": Convolution(1, 5, 4, 352, 40, (3, 3), padding=ALL_AROUND),
    "transposed, dilated, in groups": Convolution(
        1, 6, 5, 6, 8, (3, 3), (2, 1), (1, 0, 2, 1), (3, 2), groups=2, transposed=True
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_kind_of_convolution(dtype: str) -> None:
    check([Case(replace(in_dtype(spec, dtype), epilogue=BIAS_RELU)) for spec in KINDS.values()], here)


@other_cpus
def test_every_second_kind_on_every_other_instruction_set(cpu: str) -> None:
    kinds, dtypes = islice(KINDS.values(), CPUS.index(cpu) % 2, None, 2), [*DTYPES] * len(KINDS)
    check([Case(in_dtype(spec, dtype)) for spec, dtype in zip(kinds, dtypes, strict=False)], cpu)


def test_one_kernel_serves_images_of_any_size() -> None:
    dtypes = ["bfloat16", "float32"] * len(KINDS)
    kinds = (in_dtype(spec, dtype) for spec, dtype in zip(KINDS.values(), dtypes, strict=False))
    open_ = [replace(spec, batch=None, height=None, width=None) for spec in kinds]
    check([Case(spec, (3, 13, 18 - 12 * (i % 4 == 1))) for i, spec in enumerate(open_)], here)


def test_one_kernel_serves_any_batch() -> None:
    kinds = islice(KINDS.values(), 0, None, 2)  # the test before has all, with images of any size
    open_ = [replace(in_dtype(spec, "bfloat16"), batch=None) for spec in kinds]
    check([Case(spec, (1 + 3 * (i % 2), 0, 0)) for i, spec in enumerate(open_)], here)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["a sequence", "transposed"])
def test_tiles_of_several_heights_cover_any_number_of_pixels(kind: str, dtype: str) -> None:
    kinds = {
        "a sequence": Convolution(1, 1, None, 24, 40, (1, 3), padding=(0, 1, 0, 1), epilogue=BIAS_RELU),
        "transposed": Convolution(1, 1, None, 24, 40, (1, 4), strides=(1, 2), padding=(0, 1, 0, 1), transposed=True),
    }
    spec = in_dtype(kinds[kind], dtype)
    check([Case(spec, (1, 1, width), seed=width) for width in range(1, 34)], here)


def test_tiles_of_several_heights_write_nothing_beyond_an_image() -> None:
    sizes = [(64, 64, 3, (7, 7), (3,) * 4), *((size, size, 8, (3, 3), (1,) * 4) for size in range(8, 30, 4))]
    specs = [Convolution(None, h, w, c, 64, kernel, strides=(2, 2), padding=p) for h, w, c, kernel, p in sizes]
    check([Case(in_dtype(spec, "bfloat16"), (3, 0, 0)) for spec in specs], here)


@pytest.mark.parametrize("cores", [1, 3])
def test_every_number_of_tasks_covers_the_whole_output(cores: int) -> None:
    big = Convolution(5, 20, 20, 48, 200, (3, 3), padding=ALL_AROUND)
    check([Case(in_dtype(big, dtype)) for dtype in ("float32", "bfloat16")], here, cores)


def test_float32_data_are_narrowed_while_they_are_copied() -> None:
    specs = (replace(spec, compute="bfloat16", epilogue=BIAS_RELU) for spec in KINDS.values())
    check([Case(spec) for spec in islice(specs, 6)], here)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_windows_that_lie_beside_the_image_see_zeros(dtype: str) -> None:
    kernels = [(1, 1), (1, 3), (3, 1), (2, 2)]
    specs = (Convolution(2, 5, 5, 8, 4, kernel, padding=(2, 1, 2, 1)) for kernel in kernels)
    check([Case(in_dtype(spec, dtype)) for spec in specs], here)


def test_every_epilogue() -> None:
    spec = Convolution(2, 7, 7, 16, 33, (3, 3), padding=ALL_AROUND, out_dtype="bfloat16")
    kinds = [
        epilogue(scale=0.5, bias="bfloat16", activation=name, residual="float16", residual_first=name in (None, "relu"))
        for name in ACTIVATIONS
    ]
    check([Case(replace(spec, epilogue=kind)) for kind in kinds], here)


def test_a_nan_reaches_the_outputs_that_see_it_and_no_other() -> None:
    dtypes = ["bfloat16", "float32"] * len(KINDS)
    cases = [Case(in_dtype(spec, dtype)) for spec, dtype in zip(islice(KINDS.values(), 10), dtypes, strict=False)]
    for case, bad in zip(cases, [np.nan, np.nan, np.inf] * len(cases), strict=False):
        _, height, width, _ = case.data.shape
        case.data[0, height // 2, width // 2, -1] = bad
    with np.errstate(invalid="ignore"):
        expected = [case.expected()[0] for case in cases]
    for case, exact, got in zip(cases, expected, outputs(cases, here), strict=True):
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(exact), err_msg=str(case.spec))


def test_a_kernel_says_how_many_operations_it_takes() -> None:
    target = target_of(here)
    for spec in (KINDS["groups of an odd size"], KINDS["a product over pixels"]):
        per_feature = 2 * spec.channels // spec.groups * spec.kernel[0] * spec.kernel[1]
        assert int(convolution(spec, target, "main").attrs["autocast.flops"]) == Case(spec).out.size * per_feature


def test_kernels_of_one_module_share_their_snippets() -> None:
    target = target_of(here)
    functions = {
        dtype: convolution(in_dtype(KINDS["transposed"], dtype), target, dtype) for dtype in ("float32", "bfloat16")
    }
    assert compile_kernels(functions, target)["bfloat16"] is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "Convolution.batch: got 0, expected at least 1"),
        ({"padding": (0, -1, 0, 0)}, r"Convolution.padding: got \(0, -1, 0, 0\), expected at least 0"),
        ({"groups": 5}, "Convolution.groups: got 5, expected a divisor of 24 channels and 72 features"),
        ({"data_dtype": "int8"}, "Convolution.data_dtype: got 'int8', expected one of float32, bfloat16, float16"),
        ({"data_dtype": "float16", "compute": "bfloat16"}, "use compute='float32'"),
        ({"output_padding": (1, 0)}, "only a transposed convolution has it"),
    ],
)
def test_an_illegal_convolution_names_what_is_legal(arguments: dict, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        replace(KINDS["a product over pixels"], **arguments)
