"""PrimFuncs that no generator wrote run in parallel and in vectors, and stay right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from autocast.kernels import detect_target, lower
from tests.kernels.modules import EPSILON, error, module, random, run, scheduled

op = relax.op


def _kernels(body: Callable[..., relax.Expr], *arguments: tuple) -> list[str]:
    return [function.script() for function in scheduled(lower(module(body, *arguments), detect_target())).values()]


def test_elementwise_chains_are_one_parallel_vectorized_kernel() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.add(op.tanh(op.multiply(x, x)), x)

    (kernel,) = _kernels(body, ((512, 64), "float32"))
    assert "T.parallel" in kernel and "T.vectorized(T.int64(16))" in kernel and "sblock_alloc_buffer" not in kernel


def test_a_length_that_is_no_multiple_of_a_vector_is_cut_across_rows() -> None:
    (kernel,) = _kernels(lambda x: op.exp(x), ((1024, 24), "float32"))
    assert "T.vectorized(T.int64(16))" in kernel


def test_small_tensors_do_not_wake_the_other_cores() -> None:
    (kernel,) = _kernels(lambda x: op.exp(x), ((4, 16), "float32"))
    assert "T.parallel" not in kernel


def test_sums_of_columns_are_vectorized() -> None:
    (kernel,) = _kernels(lambda x: op.sum(x, axis=0), ((512, 512), "float32"))
    assert "T.parallel" in kernel and "T.vectorized(T.int64(16))" in kernel


def test_an_expensive_function_is_not_computed_for_each_reader() -> None:
    def body(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        return op.multiply(op.exp(x), y)

    (kernel,) = _kernels(body, ((64, 1), "float32"), ((64, 512), "float32"))
    assert "sblock_alloc_buffer" in kernel


_BODIES: dict[str, tuple[Callable, Callable]] = {
    "elementwise": (lambda x: op.add(op.exp(x), op.sigmoid(x)), lambda x: np.exp(x) + 1 / (1 + np.exp(-x))),
    "used twice": (lambda x: op.multiply(op.exp(x), op.exp(x)), lambda x: np.exp(2 * x)),
    "inlined and read twice": (lambda x: op.square(op.tanh(x)), lambda x: np.tanh(x) ** 2),
    "column sums": (lambda x: op.sum(op.exp(x), axis=0), lambda x: np.exp(x).sum(0)),
    "row maxima": (lambda x: op.max(x, axis=1), lambda x: x.max(1)),
    "everything": (lambda x: op.sum(x), lambda x: x.sum()),
    "softmax": (lambda x: op.nn.softmax(x), lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    "transposition": (lambda x: op.permute_dims(op.exp(x)), lambda x: np.exp(x).T),
    "powers": (
        lambda x: op.add(
            op.power(x, relax.const(3.0, str(x.ty.dtype))), op.power(op.square(x), relax.const(0.5, str(x.ty.dtype)))
        ),
        lambda x: x**3 + np.abs(x),
    ),
    "half of it": (
        lambda x: op.concat([op.negative(op.split(x, 2, axis=0)[1]), op.split(x, 2, axis=0)[0]]),
        lambda x: np.concatenate([-np.split(x, 2)[1], np.split(x, 2)[0]]),
    ),
    "padding": (
        lambda x: op.multiply(op.nn.pad(x, [1, 2, 0, 3]), relax.const(2.0, str(x.ty.dtype))),
        lambda x: 2 * np.pad(x, [(1, 2), (0, 3)]),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", _BODIES)
def test_results_match_float64_for_odd_and_even_sizes(name: str, dtype: str) -> None:
    build, reference = _BODIES[name]
    for shape in ((6, 48), (34, 19), (2, 1)):
        x = random(shape, dtype)
        (got,) = run(module(build, (shape, dtype)), x)
        assert str(got.dtype) == dtype
        assert error(got, reference(x.astype("float64"))) < 4 * max(EPSILON[dtype], 5e-7)


@pytest.mark.parametrize("name", ["elementwise", "column sums", "row maxima", "softmax", "transposition", "padding"])
def test_results_match_float64_with_run_time_sizes(name: str) -> None:
    build, reference = _BODIES[name]
    x = random((13, 37), "bfloat16")
    (got,) = run(module(build, (("n", "m"), "bfloat16")), x)
    assert error(got, reference(x.astype("float64"))) < 4 * EPSILON["bfloat16"]
