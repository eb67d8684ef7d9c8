"""What TVM types and nobody computes is refused by name, by kernels and by the torch target alike."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from tvm.relax import op

from autocast.errors import UnsupportedError
from autocast.frontend import from_relax
from autocast.torch_target import to_torch
from autocast.vm.compile import compile
from tests.kernels.modules import module

_FLOATS, _TRUTH, _NUMBERS = "R.astype(x, 'float32')", "R.not_equal(x, R.const(0, ...))", "R.astype(x, 'int64')"


@pytest.mark.parametrize(
    ("function", "dtype", "advice"),
    [
        (lambda x: op.mean(x, [1]), "int32", _FLOATS),
        (lambda x: op.std(x, [1]), "int64", _FLOATS),
        (lambda x: op.variance(x, [1]), "bool", _FLOATS),
        (lambda x: op.atan2(x, x), "int16", _FLOATS),
        (op.logical_not, "int32", _TRUTH),
        (lambda x: op.logical_xor(x, x), "uint8", _TRUTH),
        (lambda x: op.cumsum(x, 0), "bool", _NUMBERS),
        (lambda x: op.einsum([x, x], "ij,kj->ik"), "bool", _NUMBERS),
        (op.negative, "bool", _NUMBERS),
        (lambda x: op.clip(x, 0, 1), "bool", _NUMBERS),
        (lambda x: op.divide(x, x), "bool", _NUMBERS),
        (lambda x: op.left_shift(x, x), "bool", _NUMBERS),
    ],
)
def test_dtypes_that_an_operator_is_not_computed_in(function: Any, dtype: str, advice: str) -> None:
    model = from_relax(module(function, ((3, 5), dtype)))
    said = rf"relax\.\w+ of {dtype}, bound to .*{re.escape(advice)}"
    with pytest.raises(UnsupportedError, match="no kernel for " + said):
        compile(model)
    with pytest.raises(UnsupportedError, match="torch does not compute " + said):
        to_torch(model)


def test_unsigned_numbers_that_torch_or_our_kernels_alone_compute() -> None:
    quotients = from_relax(module(op.floor_divide, ((3,), "uint32"), ((3,), "uint32")))
    x, y = np.array([7, 2**32 - 1, 5], "uint32"), np.array([2, 3, 5], "uint32")
    assert quotients(x, y).tolist() == (x // y).tolist()
    with pytest.raises(UnsupportedError, match=r"torch does not compute relax.floor_divide of uint32.*try R\.astype"):
        to_torch(quotients)
    ordered = from_relax(module(lambda x: op.sort(x, 0), ((3,), "uint64")))
    assert to_torch(ordered)(torch.tensor([3, 1, 2], dtype=torch.uint64)).tolist() == [1, 2, 3]
    with pytest.raises(UnsupportedError, match=r"no kernel for relax.sort of uint64"):
        compile(ordered)


def test_powers_of_integers_that_torch_alone_computes() -> None:
    model = from_relax(module(op.power, ((3,), "int32"), ((3,), "int32")))
    with pytest.raises(UnsupportedError, match=r"no kernel for relax\.power of int32, bound to .* try R\.astype"):
        compile(model)
    base, exponent = torch.tensor([2, -3, 5], dtype=torch.int32), torch.tensor([5, 3, 0], dtype=torch.int32)
    assert to_torch(model)(base, exponent).tolist() == [32, -27, 1]
