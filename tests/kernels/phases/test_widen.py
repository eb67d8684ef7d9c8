"""Low-precision storage is computed in float32."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast.kernels.phases.widen import accumulate_wide, compute_in_float32
from tests.kernels.modules import EPSILON, NUMPY, error, module, random, run

LOW = ("bfloat16", "float16")


def test_neighbours_keep_float32_between_them_and_products_keep_low_operands() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 8), "bfloat16"), w: R.Tensor((8, 2), "bfloat16")) -> R.Tensor((4, 2), "bfloat16"):
            with R.dataflow():
                a = R.add(x, x)
                b = R.exp(a)
                c = R.matmul(b, w)
                R.output(c)
            return c

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 8), "bfloat16"), w: R.Tensor((8, 2), "bfloat16")) -> R.Tensor((4, 2), "bfloat16"):
            with R.dataflow():
                left = R.astype(x, "float32")
                right = R.astype(x, "float32")
                a = R.add(left, right)
                wide = R.exp(a)
                b = R.astype(wide, "bfloat16")
                c = R.matmul(b, w)
                R.output(c)
            return c

    tvm.ir.assert_structural_equal(compute_in_float32(Before), Expected, map_free_vars=True)


def test_a_low_product_that_no_kernel_computes_is_summed_in_float32() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((8,), "bfloat16"), w: R.Tensor((8,), "bfloat16")) -> R.Tensor((), "bfloat16"):
            with R.dataflow():
                c = R.matmul(x, w)
                R.output(c)
            return c

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((8,), "bfloat16"), w: R.Tensor((8,), "bfloat16")) -> R.Tensor((), "bfloat16"):
            with R.dataflow():
                product = R.matmul(x, w, out_dtype="float32")
                c = R.astype(product, "bfloat16")
                R.output(c)
            return c

    tvm.ir.assert_structural_equal(accumulate_wide(Before), Expected, map_free_vars=True)


def test_a_value_with_two_readers_is_stored_low() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4,), "float16")) -> R.Tensor((4,), "float16"):
            with R.dataflow():
                a = R.exp(x)
                b = R.multiply(a, a)
                R.output(b)
            return b

    names = [str(line) for line in compute_in_float32(Before).script().splitlines()]
    assert sum('dtype="float16") = R.astype' in line for line in names) == 2


def test_data_movement_and_float32_are_left_alone() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 8), "bfloat16"), y: R.Tensor((8, 4), "float32")):
            with R.dataflow():
                a = R.permute_dims(x)
                b = R.concat((a, a), axis=1)
                c = R.exp(y)
                R.output(b, c)
            return (b, c)

    tvm.ir.assert_structural_equal(compute_in_float32(Before), Before, map_free_vars=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "uint8", "bool"])
def test_every_dtype_can_be_sorted(dtype: str) -> None:
    numbers = random((3, 7), "float32", scale=9)
    x = (np.abs(numbers) if dtype == "uint8" else numbers).astype(NUMPY.get(dtype, dtype))
    wide = x.astype("float64")
    order = np.argsort(wide, 1, kind="stable")
    op = relax.op
    sort, where, best, middle, largest = (
        lambda x: op.sort(x, 1),
        lambda x: op.argsort(x, 1, dtype="int64"),
        lambda x: op.topk(x, 2, 1, largest=False),
        lambda x: relax.TupleGetItem(op.median(x, [1]), 0),
        lambda x: op.argmax(x, 1),
    )
    (got,) = run(module(sort, ((3, 7), dtype)), x)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got.astype("float64"), np.sort(wide, 1))
    np.testing.assert_array_equal(run(module(where, ((3, 7), dtype)), x)[0], order)
    values, indices = run(module(best, ((3, 7), dtype)), x)
    np.testing.assert_array_equal(values.astype("float64"), np.sort(wide, 1)[:, :2])
    np.testing.assert_array_equal(indices, order[:, :2])
    np.testing.assert_array_equal(run(module(middle, ((3, 7), dtype)), x)[0].astype("float64"), np.sort(wide, 1)[:, 3])
    np.testing.assert_array_equal(run(module(largest, ((3, 7), dtype)), x)[0], wide.argmax(1))


@pytest.mark.parametrize("dtype", LOW)
def test_what_is_scattered_to_one_place_is_summed_in_float32(dtype: str) -> None:
    x, index = random((2000,), dtype, scale=0.01), np.zeros(2000, "int64")
    data = np.ones(1, x.dtype)
    for made in (
        lambda data, index, x: relax.op.scatter_elements(data, index, x, 0, "add"),
        lambda data, index, x: relax.op.index_put(data, (index,), x, accumulate=True),
    ):
        (got,) = run(module(made, ((1,), dtype), ((2000,), "int64"), ((2000,), dtype)), data, index, x)
        assert str(got.dtype) == dtype
        assert error(got, 1 + x.astype("float64").sum(keepdims=True)) < 2 * EPSILON[dtype]


@pytest.mark.parametrize("dtype", LOW)
def test_a_sum_of_ten_thousand_terms_accumulates_in_float32(dtype: str) -> None:
    x = random((3, 10000), dtype, scale=0.01) + np.asarray(1, random((1,), dtype).dtype)
    (got,) = run(module(lambda x: relax.op.sum(x, axis=1), ((3, 10000), dtype)), x)
    assert str(got.dtype) == dtype
    assert error(got, x.astype("float64").sum(1)) < 2 * EPSILON[dtype]


_REDUCING = {
    "softmax": (lambda x: relax.op.nn.softmax(x, axis=-1), lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    "mean": (lambda x: relax.op.mean(x, axis=1), lambda x: x.mean(1)),
    "variance": (lambda x: relax.op.variance(x, axis=1), lambda x: x.var(1)),
    "cumsum": (lambda x: relax.op.cumsum(x, axis=1), lambda x: x.cumsum(1)),
    "cumsum that asks for a low accumulator": (
        lambda x: relax.op.cumsum(x, axis=1, dtype=str(x.ty.dtype)),
        lambda x: x.cumsum(1),
    ),
    "product of elements": (lambda x: relax.op.prod(x, axis=1), lambda x: x.prod(1)),
}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", _REDUCING)
def test_reductions_err_by_no_more_than_the_rounding_of_their_result(name: str, dtype: str) -> None:
    build, reference = _REDUCING[name]
    x = random((2, 3001), dtype, scale=0.02) + np.asarray(1, random((1,), dtype).dtype)
    (got,) = run(module(build, ((2, 3001), dtype)), x)
    assert error(got, reference(x.astype("float64"))) < 2 * EPSILON[dtype]


@pytest.mark.parametrize("dtype", LOW)
def test_layer_norm_of_low_precision_data(dtype: str) -> None:
    def body(x: relax.Expr, gamma: relax.Expr, beta: relax.Expr) -> relax.Expr:
        return relax.op.nn.layer_norm(x, gamma, beta, axes=[-1])

    x, gamma, beta = random((5, 77), dtype), random((77,), dtype, 1), random((77,), dtype, 2)
    (got,) = run(module(body, ((5, 77), dtype), ((77,), dtype), ((77,), dtype)), x, gamma, beta)
    wide, g, b = (array.astype("float64") for array in (x, gamma, beta))
    centered = wide - wide.mean(-1, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * g + b
    assert error(got, expected) < 2 * EPSILON[dtype]


def test_a_rounding_that_the_model_asks_for_stays() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        rounded = relax.op.astype(relax.op.astype(x, "bfloat16"), "float32")
        return relax.op.add(rounded, rounded)

    x = random((3, 48), "float32")
    (got,) = run(module(body, ((3, 48), "float32")), x)
    np.testing.assert_array_equal(got, 2 * x.astype(random((1,), "bfloat16").dtype).astype("float32"))


def test_the_end_of_a_product_is_stored_low_where_a_cast_widens_it() -> None:
    def body(x: relax.Expr, w: relax.Expr, bias: relax.Expr) -> relax.Expr:
        return relax.op.nn.softmax(relax.op.astype(relax.op.add(relax.op.matmul(x, w), bias), "float32"))

    low = ((4, 8), "bfloat16"), ((8, 6), "bfloat16"), ((6,), "bfloat16")
    mod = compute_in_float32(module(body, *low))
    bindings = mod["main"].body.blocks[0].bindings
    widened = bindings[-2].value.args[0]
    assert str(widened.ty.dtype) == "bfloat16"
