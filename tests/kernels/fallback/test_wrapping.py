"""Integers wrap around as numpy's do, whatever one kernel does with them afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.kernels.modules import module, run

op = relax.op

#: Of x, y and 3: what a kernel may compute of sums, differences and products, in words of operators and of numpy.
_EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "sums in order": lambda n, x, y, k: n.greater(n.add(x, k), x),
    "differences in order": lambda n, x, y, k: n.less(n.subtract(x, y), x),
    "products divided": lambda n, x, y, k: n.floor_divide(n.multiply(x, k), k),
    "halves of sums": lambda n, x, y, k: n.floor_divide(n.add(x, y), k),
    "the larger": lambda n, x, y, k: n.maximum(n.multiply(x, y), n.add(y, k)),
    "less itself": lambda n, x, y, k: n.subtract(n.add(x, y), y),
    "nothing less": lambda n, x, y, k: n.greater(n.negative(x), y),
    "powers": lambda n, x, y, k: n.equal(n.multiply(n.multiply(x, x), x), n.multiply(y, y)),
}


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("name", _EXPRESSIONS)
def test_what_is_computed_of_integers_that_wrap_around(name: str, dtype: str) -> None:
    known = np.iinfo(dtype)
    ends = [known.min, known.min + 1, 0, 1, 2, 3, known.max // 2, known.max // 2 + 2, known.max - 1, known.max]
    x, y = np.repeat(np.array(ends, dtype), 8), np.tile(np.array(ends[2:], dtype), 10)
    with np.errstate(over="ignore"):
        expected = _EXPRESSIONS[name](np, x, y, np.array(3, dtype))
    number = relax.const(3, dtype)
    built = module(lambda a, b: _EXPRESSIONS[name](op, a, b, number), (x.shape, dtype), (y.shape, dtype))
    np.testing.assert_array_equal(run(built, x, y)[0], expected)


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_what_is_widened_has_wrapped_around(dtype: str) -> None:
    x = np.array([np.iinfo(dtype).max, 2, 1 << 30, 7] * 8, dtype)
    with np.errstate(over="ignore"):
        expected = (x * x + x).astype("int64")
    (got,) = run(module(lambda a: op.astype(op.add(op.multiply(a, a), a), "int64"), (x.shape, dtype)), x)
    np.testing.assert_array_equal(got, expected)
