"""Before and after: which precision operators that may run in either are given, and what becomes of literals."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import amp
from tests.passes.golden import check


def test_a_flexible_chain_between_two_products_is_low():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.nn.relu(a)
                c = R.permute_dims(b)
                d = R.matmul(c, w)
                R.output(d)
            return d

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                x_low = R.astype(x, "bfloat16")
                w_low = R.astype(w, "bfloat16")
                a = R.matmul(x_low, w_low)
                b = R.nn.relu(a)
                c = R.permute_dims(b)
                d = R.matmul(c, w_low, out_dtype="float32")
                R.output(d)
            return d

    check(Before, Expected)


def test_a_residual_stream_stays_float32():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32"), g: R.Tensor((4,), "float32")):
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.add(x, a)
                c = R.nn.layer_norm(b, g, g, axes=[-1])
                R.output(c)
            return c

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32"), g: R.Tensor((4,), "float32")):
            with R.dataflow():
                x_low = R.astype(x, "bfloat16")
                w_low = R.astype(w, "bfloat16")
                a = R.matmul(x_low, w_low, out_dtype="float32")
                b = R.add(x, a)
                c = R.nn.layer_norm(b, g, g, axes=[-1])
                R.output(c)
            return c

    check(Before, Expected)


def test_a_weight_is_cast_before_its_transposition():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((16, 8), "float32")):
            with R.dataflow():
                turned = R.permute_dims(w)
                y = R.matmul(x, turned)
                R.output(y)
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((16, 8), "float32")):
            with R.dataflow():
                w_low = R.astype(w, "bfloat16")
                turned = R.permute_dims(w_low)
                x_low = R.astype(x, "bfloat16")
                y = R.matmul(x_low, turned, out_dtype="float32")
                R.output(y)
            return y

    check(Before, Expected)


def test_the_bias_is_narrowed_and_not_the_activation():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 8), "bfloat16"), w: R.Tensor((8, 8), "bfloat16"), b: R.Tensor((8,), "float32")):
            with R.dataflow():
                y = R.matmul(x, w, out_dtype="float32")
                z = R.add(y, b)
                low = R.astype(z, "bfloat16")
                R.output(low)
            return low

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 8), "bfloat16"), w: R.Tensor((8, 8), "bfloat16"), b: R.Tensor((8,), "float32")):
            with R.dataflow():
                y = R.matmul(x, w)
                b_low = R.astype(b, "bfloat16")
                z = R.add(y, b_low)
                low = z
                R.output(low)
            return low

    check(Before, Expected)


def test_the_objectives_choose_differently_where_one_large_cast_replaces_two_small_ones():
    # One narrowing of the large sum, or one of each of the two small operands that are broadcast to it.
    @I.ir_module
    class Before:
        @R.function
        def main(a: R.Tensor((64, 1), "float32"), b: R.Tensor((1, 64), "float32")):
            with R.dataflow():
                total = R.add(a, b)
                y = R.matmul(total, total)
                R.output(y)
            return y

    fewest = amp.autocast(Before, objective="casts").report
    smallest = amp.autocast(Before, objective="bytes").report
    assert (fewest.casts, fewest.cast_bytes) == (1, 6 * 64 * 64)
    assert (smallest.casts, smallest.cast_bytes) == (2, 6 * (64 + 64))


def test_literals_are_folded_to_the_amp_dtype():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float16")) -> R.Tensor((4, 4), "float16"):
            with R.dataflow():
                wide = R.astype(x, "float32")
                half = R.multiply(wide, R.const(0.1, "float32"))
                y = R.matmul(half, half)
                low = R.astype(y, "float16")
                R.output(low)
            return low

    after = amp.autocast(Before, dtype="float16")
    half, product, _ = after["main"].body.blocks[0].bindings
    assert half.value.args[0].same_as(after["main"].params[0])
    assert half.value.args[1].value.numpy() == np.float16(0.1)
    assert str(product.value.ty.dtype) == "float16"
    assert after.report.casts == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1e30, ["float32", "float32"]),
        (-np.finfo(np.float32).max, ["float32", "float32"]),
        (1e-30, ["float32", "float16", "float32"]),
        (1e-7, ["float32", "float16", "float32"]),
    ],
    ids=["overflows", "lowest", "vanishes", "subnormal"],
)
def test_a_literal_out_of_range_keeps_its_operator_in_float32_and_where_it_overflows_what_reads_the_sum(
    value, expected
):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [x]):
        y = builder.emit(relax.op.add(x, relax.const(value, "float32")))
        builder.emit_func_output(builder.emit(relax.op.matmul(y, y)))
    after = amp.autocast(builder.get(), dtype="float16")
    calls = [binding.value for binding in after["main"].body.blocks[0].bindings]
    assert [str(call.ty.dtype) for call in calls] == expected
    assert calls[0].args[1].value.numpy() == np.float32(value)


def test_the_same_literal_is_in_range_of_bfloat16():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [x]):
        y = builder.emit(relax.op.add(x, relax.const(1e30, "float32")))
        builder.emit_func_output(builder.emit(relax.op.matmul(y, y)))
    after = amp.autocast(builder.get(), dtype="bfloat16")
    calls = [binding.value for binding in after["main"].body.blocks[0].bindings]
    assert [str(call.ty.dtype) for call in calls] == ["bfloat16", "bfloat16", "float32"]


def test_a_literal_that_its_author_rounds_is_rounded_and_folded():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                low = R.astype(R.const(0.1, "float32"), "float16")
                rounded = R.astype(low, "float32")
                y = R.exp(R.add(x, rounded))
                R.output(y)
            return y

    after = amp.autocast(Before, dtype="float16")
    total = after["main"].body.blocks[0].bindings[0].value
    assert total.args[1].value.numpy() == np.float32(np.float16(0.1)) != np.float32(0.1)
    assert after.report.casts == 0
