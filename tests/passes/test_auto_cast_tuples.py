"""Before and after: tuples, nested ones, and what is joined and split."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import type_hints
from autocast import amp
from tests.passes.golden import check


def test_concatenation_and_split_between_products_are_low():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                a = R.matmul(x, x)
                both = R.concat((a, a), axis=0)
                parts = R.split(both, 2, axis=0)
                first = parts[0]
                second = parts[1]
                y = R.matmul(first, second)
                R.output(y)
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                low = R.astype(x, "bfloat16")
                a = R.matmul(low, low)
                both = R.concat((a, a), axis=0)
                parts = R.split(both, 2, axis=0)
                first = parts[0]
                second = parts[1]
                y = R.matmul(first, second, out_dtype="float32")
                R.output(y)
            return y

    check(Before, Expected)


def test_splits_into_different_numbers_of_parts_are_told_apart():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((12, 12), "float32")):
            with R.dataflow():
                a = R.matmul(x, x)
                halves = R.split(a, 2, axis=0)
                thirds = R.split(a, 3, axis=0)
                b = halves[1]
                c = thirds[2]
                d = R.matmul(b, x)
                e = R.matmul(c, x)
                R.output(d, e)
            return (d, e)

    after = amp.autocast(Before)
    relax.analysis.well_formed(after)
    assert after.report.casts == 1


def test_one_field_of_a_nested_tuple_is_cast_and_the_others_are_not():
    @I.ir_module
    class Before:
        @R.function
        def main(
            p: R.Tuple(R.Tuple(R.Tensor((4, 4), "float32"), R.Tensor((4, 4), "float32")), R.Tensor((4,), "int32")),
        ):
            with R.dataflow():
                inner = p[0]
                x = inner[0]
                w = inner[1]
                a = R.matmul(x, x)
                b = R.exp(w)
                R.output(a, b)
            return (a, b)

    @I.ir_module
    class Expected:
        @R.function
        def main(
            p: R.Tuple(R.Tuple(R.Tensor((4, 4), "float32"), R.Tensor((4, 4), "float32")), R.Tensor((4,), "int32")),
        ):
            with R.dataflow():
                inner = p[0]
                x = inner[0]
                w = inner[1]
                low = R.astype(x, "bfloat16")
                a = R.matmul(low, low, out_dtype="float32")
                b = R.exp(w)
                R.output(a, b)
            return (a, b)

    check(Before, Expected)


def test_a_tuple_that_is_returned_is_taken_apart_where_one_field_must_be_cast():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                a = R.matmul(x, x)
                b = R.exp(x)
                pair = (a, b)
                R.output(pair)
            return pair

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                low = R.astype(x, "bfloat16")
                a = R.matmul(low, low)
                b = R.exp(x)
                pair = (a, b)
                a_wide = R.astype(a, "float32")
                b_seen = b
                R.output(pair, a_wide, b_seen)
            return (a_wide, b_seen)

    with amp.CustomTypeHint({"matmul": type_hints.low(2)}):
        after = amp.autocast(Before)
    relax.analysis.well_formed(after)
    tvm.ir.assert_structural_equal(after, Expected)


def test_a_literal_inside_a_tuple_is_folded_where_it_is_used():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                pair = (R.const(0.5, "float32"), x)
                half = pair[0]
                y = R.multiply(x, half)
                z = R.matmul(y, y)
                R.output(z)
            return z

    after = amp.autocast(Before)
    relax.analysis.well_formed(after)
    product = after["main"].body.blocks[0].bindings[-1].value
    scaling = next(b.value for b in after["main"].body.blocks[0].bindings if b.var.same_as(product.args[0]))
    assert str(scaling.args[1].ty.dtype) == "bfloat16"
    assert after.report.casts == 1


def test_what_is_no_float_leaves_a_dataflow_block_with_a_converted_neighbour():
    @I.ir_module
    class Before:
        @R.function
        def main(n: R.Tensor((1,), "int64"), x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                a = R.matmul(x, x)
                pair = (n, a)
                R.output(pair)
            return pair

    with amp.CustomTypeHint({"matmul": type_hints.low(2)}):
        after = amp.autocast(Before, policy="mp4")
    relax.analysis.well_formed(after)
    tvm.ir.assert_structural_equal(after["main"].ret_ty, Before["main"].ret_ty)
    assert after.report.casts == 2
