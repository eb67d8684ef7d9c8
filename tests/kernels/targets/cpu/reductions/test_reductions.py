"""Reductions over any axes against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import tvm

from autocast.kernels import detect_target
from autocast.kernels.specs.program import ProgramBuilder
from autocast.kernels.specs.reductions import Reduce
from autocast.kernels.targets.cpu.reductions.kernel import reduce
from tests.kernels.compiling import compile_kernels
from tests.kernels.modules import EPSILON, random
from tests.kernels.targets.cpu.products.cases import CPUS, runs_here, target_of

#: Shapes and axes: kept last, reduced last, all, alternating, more than a block, a strip and a chunk, single elements.
CASES = (
    ((5, 7), (0,)),
    ((300, 531), (0,)),
    ((3, 50, 33), (1,)),
    ((3, 50, 33), (0, 1)),
    ((7, 5, 3, 33), (0, 2)),
    ((10007,), (0,)),
    ((100, 1001), (0, 1)),
    ((1000, 1), (0,)),
    ((4, 3, 2, 5, 6), (1, 3)),
    ((4, 3, 2, 5, 6), (0, 2, 4)),
    ((9001, 9), (0,)),
    ((3, 70001), (1,)),
)
_REFERENCES: dict[str, Callable[[torch.Tensor, tuple], torch.Tensor]] = {
    "row_sum": lambda x, axes: x.sum(axes),
    "row_maximum": lambda x, axes: x.amax(axes),
    "row_minimum": lambda x, axes: x.amin(axes),
}


def reduction(shape: Sequence, axes: tuple[int, ...], function: str, dtype: str, mean: bool = False) -> Reduce:
    builder = ProgramBuilder(tuple(shape))
    step = builder.load(builder.argument(tuple(shape), dtype), tuple(shape))
    out = tuple(dim for axis, dim in enumerate(shape) if axis not in axes)
    return Reduce(builder.finish([(step, out, "float32")]), axes, function, mean)


def check(cases: Sequence, cpu: str, function: str, dtype: str, names: Sequence[int] = ()) -> None:
    """Compare kernels, compiled together, with float64; results are NaN before.

    A sum of n numbers in blocks is off by some roundings of the sum of their magnitudes, however large n is.
    """
    target = target_of(cpu)
    functions = {}
    for i, (shape, axes) in enumerate(cases):
        dims = [f"d{axis}" if axis in names else dim for axis, dim in enumerate(shape)]
        functions[f"f{i}"] = reduce(reduction(dims, axes, function, dtype), target, f"f{i}")
    library = compile_kernels(functions, target)
    torch.manual_seed(0)
    for i, (shape, axes) in enumerate(cases):
        x = torch.randn(shape).to(getattr(torch, dtype))
        got = torch.full([dim for axis, dim in enumerate(shape) if axis not in axes], float("nan"))
        library[f"f{i}"](tvm.runtime.from_dlpack(x), tvm.runtime.from_dlpack(got))
        expected = _REFERENCES[function](x.double(), axes)
        allowed = 24 * EPSILON["float32"] * x.double().abs().sum(axes) if function == "row_sum" else 0.0
        assert ((got.double() - expected).abs() <= allowed).all(), (shape, axes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("function", _REFERENCES)
def test_any_axes_match_float64(function: str, dtype: str) -> None:
    check(CASES, "cooperlake" if runs_here("cooperlake") else "x86-64", function, dtype)


@pytest.mark.parametrize("cpu", [cpu for cpu in CPUS if runs_here(cpu)])
def test_every_instruction_set_reduces_alike(cpu: str) -> None:
    check((CASES[1], CASES[2], CASES[6], CASES[8]), cpu, "row_sum", "bfloat16")


@pytest.mark.parametrize("names", [(0,), (1,), (0, 1)])
def test_sizes_may_be_known_at_run_time_only(names: tuple[int, ...]) -> None:
    cases = (CASES[0], CASES[1], CASES[2], CASES[4], CASES[6], ((1, 1), (0,)), ((2, 1), (0, 1)), ((1, 3), (1,)))
    check(cases, "x86-64-v3", "row_sum", "float32", names)


@pytest.mark.parametrize("threads", [1, 2])
def test_parts_make_up_the_whole(threads: int) -> None:
    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(1, threads)
    try:
        check((((70000, 9), (0,)), ((300, 1000), (0, 1)), ((700, 513), (0,))), "x86-64-v3", "row_sum", "float32")
    finally:
        configure(1, 0)


def test_large_sums_lose_no_more_than_pairwise_ones() -> None:
    """A million numbers around 1: one float32 accumulator would be off by thousands of roundings."""
    target = detect_target()
    x = torch.rand(1 << 20, 4) + 0.5
    for axes in ((0,), (0, 1)):
        spec = reduction(x.shape, axes, "row_sum", "float32")
        kernel = compile_kernels({"f": reduce(spec, target, "f")}, target)["f"]
        got = torch.zeros([4] if axes == (0,) else [])
        kernel(tvm.runtime.from_dlpack(x), tvm.runtime.from_dlpack(got))
        exact = x.double().sum(axes)
        assert ((got.double() - exact).abs() / exact < 8 * EPSILON["float32"]).all()


def test_nan_and_infinities_pass_through() -> None:
    target = detect_target()
    x = random((700, 40), "float32")
    x[3, 5], x[4, 6], x[5, 7], x[6, 7] = np.nan, np.inf, np.inf, -np.inf
    for function, reference in (("row_sum", np.sum), ("row_maximum", np.max), ("row_minimum", np.min)):
        spec = reduction(x.shape, (0,), function, "float32")
        kernel = compile_kernels({"f": reduce(spec, target, "f")}, target)["f"]
        got = tvm.runtime.tensor(np.zeros(40, "float32"))
        kernel(tvm.runtime.tensor(x), got)
        with np.errstate(invalid="ignore"):
            expected = reference(x, axis=0)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-4)
