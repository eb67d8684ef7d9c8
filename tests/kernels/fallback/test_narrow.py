"""Numbers of 8 bits: each is widened to the number that it is, and what else would be done with them is refused."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from autocast import amp, from_relax, vm
from autocast.errors import UnsupportedError

DTYPES = ("float8_e4m3fn", "float8_e5m2")


def _codes(dtype: str) -> np.ndarray:
    """All numbers of a dtype, subnormal ones, infinities and NaN among them."""
    return np.arange(256, dtype="uint8").view(getattr(ml_dtypes, dtype)).reshape(32, 8)


def _module(dtype: str, rows: int | str, body: Callable[[relax.Expr], relax.Expr]) -> tvm.IRModule:
    builder, size = relax.BlockBuilder(), tvm.tirx.Var(rows, "int64") if isinstance(rows, str) else rows
    x = relax.Var("x", relax.TensorType((size, 8), dtype))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(body(x)))
    return builder.get()


@pytest.mark.parametrize("to", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("rows", [32, "n"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_8_bits_is_widened_to_itself(dtype: str, rows: int | str, to: str) -> None:
    codes = _codes(dtype)
    got = vm.compile(_module(dtype, rows, lambda x: op.astype(x, to)))(codes)
    np.testing.assert_array_equal(got.astype("float64"), codes.astype("float64"))


@pytest.mark.parametrize("low", [False, True])
def test_weights_may_be_stored_in_8_bits(low: bool) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    w = relax.Var("w", relax.TensorType((8, 8), "float8_e4m3fn"))
    with builder.function("main", [x, w]):
        wide = builder.emit(op.astype(builder.emit(op.permute_dims(w)), "float32"))
        builder.emit_func_output(builder.emit(op.matmul(x, wide)))
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(ml_dtypes.float8_e4m3fn)
    model = from_relax(builder.get(), [weight])
    got = vm.compile(amp.autocast(model) if low else model)(np.eye(4, 8, dtype="float32"))
    np.testing.assert_array_equal(got, weight.astype("float32").T[:4])


REFUSED = {
    "relax.add": lambda x: op.add(x, x),
    "relax.sum": op.sum,
    "relax.sort": op.sort,
    "relax.astype": lambda x: op.astype(op.astype(x, "float32"), "float8_e4m3fn"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_computed_in_8_bits_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"no kernel for {name}, bound to %.*float8.*try R\.astype"):
        vm.compile(_module("float8_e5m2", 32, REFUSED[name]))
