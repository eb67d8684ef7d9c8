"""PrimFuncs that no generator wrote run in parallel and in vectors, and stay right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax, topi

from autocast.kernels import detect_target, lower
from tests.kernels.modules import error, module, random, run, scheduled

op = relax.op


def _kernels(body: Callable[..., relax.Expr], *arguments: tuple) -> list[str]:
    return [function.script() for function in scheduled(lower(module(body, *arguments), detect_target())).values()]


def test_integer_chains_are_one_parallel_vectorized_kernel() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.add(op.negative(op.multiply(x, x)), x)

    (kernel,) = _kernels(body, ((512, 64), "int32"))
    assert "T.parallel" in kernel and "T.vectorized(T.int64(16))" in kernel and "sblock_alloc_buffer" not in kernel


def test_a_length_that_is_no_multiple_of_a_vector_is_cut_across_rows() -> None:
    (kernel,) = _kernels(lambda x: op.add(x, x), ((1024, 24), "int32"))
    assert "T.vectorized(T.int64(16))" in kernel


def test_small_tensors_do_not_wake_the_other_cores() -> None:
    (kernel,) = _kernels(lambda x: op.add(x, x), ((4, 16), "int32"))
    assert "T.parallel" not in kernel


_BODIES: dict[str, tuple[str, Callable, Callable]] = {
    "integers": (
        "int32",
        lambda x: op.add(op.multiply(x, x), op.floor_mod(x, relax.const(3, "int32"))),
        lambda x: x * x + x % 3,
    ),
    "comparisons of integers": ("int64", lambda x: op.less(x, op.negative(x)), lambda x: x < -x),
    "sums of integers": ("int32", lambda x: op.sum(x, axis=0), lambda x: x.sum(0)),
    "maxima of integers": ("int32", lambda x: op.max(op.abs(x), axis=1), lambda x: np.abs(x).max(1)),
    "tangent": ("float32", lambda x: op.tan(op.multiply(x, relax.const(0.25, "float32"))), lambda x: np.tan(x / 4)),
    "triangle": ("bfloat16", lambda x: op.triu(x, 1), lambda x: np.triu(x, 1)),
    "power": ("bfloat16", lambda x: op.power(op.abs(x), op.abs(x)), lambda x: np.abs(x) ** np.abs(x)),
    "remainder": ("float32", lambda x: op.floor_mod(x, relax.const(0.75, "float32")), lambda x: x % 0.75),
    "padding": (
        "bfloat16",
        lambda x: op.multiply(op.nn.pad(x, [1, 2, 0, 3]), relax.const(2.0, "bfloat16")),
        lambda x: 2 * np.pad(x, [(1, 2), (0, 3)]),
    ),
}


@pytest.mark.parametrize("shape", [(6, 48), (34, 19), (2, 1), ("n", "m")], ids=str)
@pytest.mark.parametrize("name", _BODIES)
def test_results_match_float64(name: str, shape: tuple) -> None:
    dtype, build, reference = _BODIES[name]
    known = (13, 37) if "n" in shape else shape
    x = random(known, dtype, scale=10.0 if dtype.startswith("int") else 1.0)
    (got,) = run(module(build, (shape, dtype)), x)
    expected = reference(x.astype("float64"))
    if dtype.startswith("int"):
        np.testing.assert_array_equal(got, expected)
    else:
        assert str(got.dtype) == dtype
        assert error(got, expected) < (2.0**-7 if dtype == "bfloat16" else 2.0**-20)


def test_volumes_with_run_time_sizes_are_pooled() -> None:
    x = random((1, 2, 7, 6, 9), "float32")
    pooled = module(lambda x: op.nn.max_pool3d(x, (2, 2, 2), (2, 2, 2)), ((1, 2, 7, "h", "w"), "float32"))
    (got,) = run(pooled, x)
    np.testing.assert_array_equal(got, x[:, :, :6, :, :8].reshape(1, 2, 3, 2, 3, 2, 4, 2).max((3, 5, 7)))


@pytest.mark.parametrize(("shape", "guarded"), [(("n", 5), True), ((4, 5), False)])
def test_running_sums_touch_nothing_where_there_is_nothing(shape: tuple, guarded: bool) -> None:
    kernels = _kernels(lambda x: op.cumsum(x, 0), (shape, "float32"))
    assert any("if n > T.int64(0)" in kernel for kernel in kernels) == guarded


def test_a_result_that_is_a_sum_of_sizes_may_have_elements_where_one_of_them_is_0() -> None:
    body = (lambda x, y: op.concat([x, op.negative(y)]), (("n", 3), "int32"), (("m", 3), "int32"))
    x, y = np.zeros((0, 3), "int32"), np.arange(6, dtype="int32").reshape(2, 3)
    for a, b in ((x, y), (y, x)):
        np.testing.assert_array_equal(run(module(*body), a, b)[0], np.concatenate([a, -b]))


def test_remainders_in_functions_that_came_with_the_module_are_computed_right() -> None:
    shape, repeats = (3, 4, 5), (6, 4, 2)
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit_te(topi.tile, x, repeats))
        builder.emit_func_output(result)
    array = random(shape, "float32")
    np.testing.assert_array_equal(run(builder.get(), array)[0], np.tile(array, repeats))


def test_statements_that_tvm_puts_in_sequence_are_compiled_without_its_warnings(
    capfd: pytest.CaptureFixture[str],
) -> None:
    places = np.array([[1, 0, 2]])
    mod = module(
        lambda x, i, y: op.scatter_elements(x, i, y, 0), ((3, 3), "float32"), ((1, 3), "int64"), ((1, 3), "float32")
    )
    x, y = random((3, 3), "float32"), random((1, 3), "float32", seed=1)
    expected = x.copy()
    np.put_along_axis(expected, places, y, 0)
    np.testing.assert_array_equal(run(mod, x, places, y)[0], expected)
    assert capfd.readouterr().err == ""
