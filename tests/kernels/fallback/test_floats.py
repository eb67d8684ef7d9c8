"""Floating-point numbers that no kernel of ours takes are rounded, compared and added up as everywhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tvm import relax

from autocast.operators.own import near_zero
from tests.kernels.modules import module, random, run

op = relax.op

SPECIAL = np.array([0.0, 1.0, -1.0, 2.5, -7.0, 1e-300, 1e300, np.inf, -np.inf, np.nan])


#: Of x, y and 1: differences that are 0, x or y where numbers are not rounded and none is NaN.
_DIFFERENCES: dict[str, Callable[..., Any]] = {
    "of itself": lambda x, y, one, add, subtract: subtract(x, x),
    "of a sum and its first": lambda x, y, one, add, subtract: subtract(add(x, y), x),
    "of a sum and its second": lambda x, y, one, add, subtract: subtract(add(x, y), y),
    "of a sum and a number": lambda x, y, one, add, subtract: subtract(add(x, one), one),
    "of a part and the sum": lambda x, y, one, add, subtract: subtract(x, add(y, x)),
    "of sums in another order": lambda x, y, one, add, subtract: subtract(add(x, one), add(one, x)),
    "within a sum": lambda x, y, one, add, subtract: add(y, subtract(x, x)),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", _DIFFERENCES)
def test_differences_are_rounded_and_of_nan_nan(name: str, dtype: str) -> None:
    with np.errstate(all="ignore"):
        x, y = np.tile(SPECIAL, 10).astype(dtype), np.repeat(SPECIAL, 10).astype(dtype)
        expected = _DIFFERENCES[name](x, y, np.ones((), dtype), np.add, np.subtract)
    one = relax.const(1.0, dtype)
    body = module(lambda a, b: _DIFFERENCES[name](a, b, one, op.add, op.subtract), (x.shape, dtype), (y.shape, dtype))
    np.testing.assert_array_equal(run(body, x, y)[0], expected)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_nan_differs_from_all_numbers(dtype: str) -> None:
    with np.errstate(over="ignore"):
        x, y = np.tile(SPECIAL, 16).astype(dtype), np.repeat(SPECIAL, 16).astype(dtype)
    (got,) = run(module(op.not_equal, (x.shape, dtype), (y.shape, dtype)), x, y)
    np.testing.assert_array_equal(got, x != y)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_logarithms_of_sums_of_large_exponentials(dtype: str) -> None:
    x = np.array([1000, -np.inf, np.inf, np.nan, 3, -1000] * 8, dtype)
    y = np.array([1000, -np.inf, np.inf, 3, np.nan, -999] * 8, dtype)
    (got,) = run(module(op.log_add_exp, (x.shape, dtype), (y.shape, dtype)), x, y)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(got, np.logaddexp(x, y), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: op.subtract(op.multiply(a, a), op.multiply(b, b)),
        lambda a, b: op.subtract(op.square(a), op.multiply(b, a)),
        lambda a, b: op.add(op.multiply(a, b), op.multiply(op.negative(a), b)),
    ],
    ids=["squares", "square", "sum"],
)
def test_equal_products_leave_nothing(function: Callable[..., relax.Expr], dtype: str) -> None:
    """Where a product is fused with a difference, the other's rounding is left."""
    x = random((16, 48), dtype)
    (got,) = run(module(function, (x.shape, dtype), (x.shape, dtype)), x, x.copy())
    assert not got.any()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extrema_of_nan_and_of_infinities(name: str, dtype: str) -> None:
    rows = [[1, np.nan, 3, 2], [-np.inf] * 4, [np.inf] * 4, [-np.inf, 1, -2, 0], [-1, -2, -3, -np.nan]]
    x = np.array(rows, dtype)
    (got,) = run(module(lambda a: getattr(op, name)(a, -1), (x.shape, dtype)), x)
    np.testing.assert_array_equal(got, getattr(x, name)(-1))


def test_the_largest_of_windows_of_float64() -> None:
    x = torch.tensor([[[1, torch.nan, -torch.inf, -torch.inf, 3, 2, -7, -8, 0, torch.inf]]], dtype=torch.float64)
    (got,) = run(module(lambda a: op.nn.max_pool1d(a, 2, 2), (tuple(x.shape), "float64")), x.numpy())
    torch.testing.assert_close(torch.from_numpy(got), torch.nn.functional.max_pool1d(x, 2), equal_nan=True)


@pytest.mark.parametrize(("beta", "threshold"), [(1.0, 20.0), (2.0, 5.0), (0.5, 1000.0)])
def test_softplus_has_all_digits(beta: float, threshold: float) -> None:
    x = torch.tensor(
        [-700.0, -40, -1e-9, 0, 1e-9, 3, 15, 50, 900, torch.inf, -torch.inf, torch.nan], dtype=torch.float64
    )
    (got,) = run(module(lambda a: op.nn.softplus(a, beta, threshold), (tuple(x.shape), "float64")), x.numpy())
    expected = torch.nn.functional.softplus(x, beta, threshold)
    torch.testing.assert_close(torch.from_numpy(got), expected, rtol=1e-14, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("name", ["log1p", "expm1"])
def test_what_is_near_zero_has_all_digits(name: str) -> None:
    x = np.array([1e-20, -1e-18, 1e-9, 0.3, -0.2, 0.0] * 8)
    (got,) = run(module(getattr(near_zero, name), (x.shape, "float64")), x)
    np.testing.assert_allclose(got, getattr(np, name)(x), rtol=1e-15)
