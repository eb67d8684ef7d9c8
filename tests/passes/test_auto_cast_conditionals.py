"""Before and after: casts around conditionals, and in their branches."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import amp
from tests.passes.golden import check


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


def test_a_result_that_is_narrowed_for_both_branches_stays_what_it_is_when_it_is_cast_again():
    @I.ir_module
    class Before:
        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((8, 8), "float32"), b: R.Tensor((8,), "float32")):
            y = R.matmul(x, x)
            if c:
                a = R.nn.relu(y)
                r = a
            else:
                n = R.nn.layer_norm(y, b, b, axes=[-1])
                _p = R.matmul(n, x)
                r = y
            z = R.matmul(r, x)
            return z

    once = amp.autocast(Before)
    tvm.ir.assert_structural_equal(amp.autocast(once), once)
