"""Floating-point numbers compared by keys: in every dtype, with values and places, whatever the axis."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tvm import relax

from tests.kernels.modules import NUMPY, module, run

op = relax.op

#: NaN of both signs, infinities, zeros of both signs, equal numbers, neighbours.
_ROW = [1.0, np.nan, -np.inf, 0.0, -0.0, 2.0, np.inf, -np.nan, 1.0, -1.0, 1e-30, -1e-30, 3.0, np.inf]


def _data(dtype: str) -> np.ndarray:
    return np.array([_ROW, _ROW[::-1], [-np.inf] * 14, [np.nan] * 14]).astype(NUMPY.get(dtype, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("descending", [False, True])
def test_nan_is_the_largest(dtype: str, axis: int, descending: bool) -> None:
    x = _data(dtype)
    exact = torch.from_numpy(x.astype("float64"))
    values, places = exact.sort(dim=axis, descending=descending, stable=True)

    def body(v: relax.Expr) -> relax.Expr:
        both = op.topk(v, 3, axis, "both", descending, "int64")
        return relax.Tuple([op.sort(v, axis, descending), op.argsort(v, axis, descending, "int64"), both[0], both[1]])

    sorted_, order, top, at = run(module(body, (x.shape, dtype)), x)
    np.testing.assert_array_equal(sorted_.astype("float64"), values.numpy())
    np.testing.assert_array_equal(top.astype("float64"), values.narrow(axis, 0, 3).numpy())
    np.testing.assert_array_equal(np.take_along_axis(x, at, axis).astype("float64"), values.narrow(axis, 0, 3).numpy())
    if not descending:  # TVM reverses the order of equal numbers then
        np.testing.assert_array_equal(order, places.numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_place_of_an_extreme_is_that_of_a_nan_and_one_of_the_places(dtype: str, axis: int) -> None:
    x = _data(dtype)
    for x in (_data(dtype), np.full((4, 14), -np.inf, dtype), np.full((4, 14), np.inf, dtype)):
        mod = module(lambda v: relax.Tuple([op.argmax(v, axis), op.argmin(v, axis, True)]), (x.shape, dtype))
        largest, smallest = run(mod, x)
        exact = torch.from_numpy(x)
        np.testing.assert_array_equal(largest, exact.argmax(axis).numpy())
        np.testing.assert_array_equal(smallest, exact.argmin(axis, keepdim=True).numpy())
