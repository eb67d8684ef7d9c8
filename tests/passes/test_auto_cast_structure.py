"""Before and after: tuples, conditionals, several blocks."""

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


def test_a_cast_that_both_branches_want_stands_before_the_conditional():
    @I.ir_module
    class Before:
        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((4, 4), "float32")):
            if c:
                a = R.matmul(x, x)
                r = a
            else:
                b = R.matmul(x, x)
                d = R.exp(b)
                r = d
            return r

    @I.ir_module
    class Expected:
        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((4, 4), "float32")):
            low = R.astype(x, "bfloat16")
            if c:
                a = R.matmul(low, low, out_dtype="float32")
                r = a
            else:
                b = R.matmul(low, low, out_dtype="float32")
                d = R.exp(b)
                r = d
            return r

    check(Before, Expected)


def test_a_field_that_both_branches_project_and_cast_is_cast_once():
    @I.ir_module
    class Before:
        @R.function
        def main(c: R.Tensor((), "bool"), p: R.Tuple(R.Tensor((4, 4), "float32"), R.Tensor((), "float32"))):
            if c:
                x = p[0]
                a = R.matmul(x, x)
                r = a
            else:
                y = p[0]
                b = R.matmul(y, y)
                r = b
            return r

    @I.ir_module
    class Expected:
        @R.function
        def main(c: R.Tensor((), "bool"), p: R.Tuple(R.Tensor((4, 4), "float32"), R.Tensor((), "float32"))):
            field = p[0]
            low = R.astype(field, "bfloat16")
            if c:
                _x = p[0]
                a = R.matmul(low, low, out_dtype="float32")
                r = a
            else:
                _y = p[0]
                b = R.matmul(low, low, out_dtype="float32")
                r = b
            return r

    after = amp.autocast(Before)
    tvm.ir.assert_structural_equal(after, Expected)
    assert after.report.casts == 1


def test_both_branches_of_a_conditional_give_the_dtype_that_is_wanted_of_it():
    @I.ir_module
    class Before:
        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((4, 4), "float32")):
            if c:
                a = R.matmul(x, x)
                r = a
            else:
                b = R.exp(x)
                r = b
            y = R.matmul(r, r)
            return y

    after = amp.autocast(Before)
    relax.analysis.well_formed(after)
    conditional = next(
        binding.value
        for block in after["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.If)
    )
    branches = [str(branch.body.ty.dtype) for branch in (conditional.true_branch, conditional.false_branch)]
    assert branches == ["bfloat16", "bfloat16"]


def test_a_cast_that_two_blocks_want_is_made_once_and_seen_by_both():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                a = R.exp(x)
                b = R.matmul(a, a)
                R.output(a, b)
            d = R.nn.relu(b)
            with R.dataflow():
                c = R.matmul(d, a)
                R.output(c)
            return (a, c)

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                a = R.exp(x)
                low = R.astype(a, "bfloat16")
                b = R.matmul(low, low)
                R.output(a, b, low)
            d = R.nn.relu(b)
            with R.dataflow():
                c = R.matmul(d, low, out_dtype="float32")
                R.output(c)
            return (a, c)

    check(Before, Expected)


def test_an_output_that_only_renames_a_low_tensor_is_seen_by_later_blocks():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "bfloat16"), d: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                y = R.nn.relu(x)
                z = R.astype(y, "float32")
                R.output(z)
            f = R.sqrt(d)
            with R.dataflow():
                e = R.exp(f)
                R.output(e)
            return (z, e)

    after = amp.autocast(Before)
    relax.analysis.well_formed(after)
    assert after.report.casts == 1


def test_plain_blocks_are_cast_like_dataflow_blocks():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            a = R.matmul(x, x)
            b = R.exp(a)
            return b

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            low = R.astype(x, "bfloat16")
            a = R.matmul(low, low, out_dtype="float32")
            b = R.exp(a)
            return b

    check(Before, Expected)


def test_the_tuple_of_a_conditional_is_taken_apart_where_it_is_returned():
    @I.ir_module
    class Before:
        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((4, 4), "float32")):
            if c:
                a = R.matmul(x, x)
                r = (a, x)
            else:
                b = R.exp(x)
                r = (b, b)
            y = r[0]
            z = R.matmul(y, y)
            return (z, r)

    after = amp.autocast(Before, out_dtype="bfloat16")
    relax.analysis.well_formed(after)
    assert [str(field.dtype) for field in after["main"].ret_ty.fields[1].fields] == ["bfloat16", "bfloat16"]


def test_a_renamed_low_tensor_that_a_later_block_groups_is_seen_there():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "bfloat16")):
            with R.dataflow():
                low = R.nn.relu(x)
                wide = R.astype(low, "float32")
                R.output(wide)
            pair = (wide, wide)
            nested = (pair, wide)
            inner = nested[0]
            again = inner[1]
            y = R.exp(again)
            return (pair, y)

    after = amp.autocast(Before)
    relax.analysis.well_formed(after)
    assert after.report.casts == 1


def test_a_cast_that_stands_in_an_earlier_block_is_seen_by_both_branches():
    @I.ir_module
    class Before:
        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((4, 4), "bfloat16")):
            with R.dataflow():
                low = R.nn.relu(x)
                wide = R.astype(low, "float32")
                R.output(wide)
            if c:
                a = R.exp(wide)
                r = a
            else:
                r = R.sqrt(wide)
            return r

    after = amp.autocast(Before)
    relax.analysis.well_formed(after)
    assert after.report.casts == 1
