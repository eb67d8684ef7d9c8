"""Before and after: where casts are inserted, shared, reused and cancelled."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import amp
from tests.passes.golden import check, check_unchanged


def test_one_cast_is_shared_by_several_consumers():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.matmul(w, x)
                R.output(a, b)
            return (a, b)

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                x_low = R.astype(x, "bfloat16")
                w_low = R.astype(w, "bfloat16")
                a = R.matmul(x_low, w_low, out_dtype="float32")
                b = R.matmul(w_low, x_low, out_dtype="float32")
                R.output(a, b)
            return (a, b)

    check(Before, Expected)


def test_a_product_stores_float32_for_a_float32_consumer_and_needs_no_cast():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "bfloat16"), w: R.Tensor((4, 4), "bfloat16")) -> R.Tensor((4, 4), "float32"):
            y = R.matmul(x, w)
            z = R.astype(y, "float32")
            p = R.nn.softmax(z)
            return p

    # Nothing rounds to bfloat16 by the author's wish here: the product itself is free to store float32.
    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "bfloat16"), w: R.Tensor((4, 4), "bfloat16")) -> R.Tensor((4, 4), "float32"):
            y = R.matmul(x, w, out_dtype="float32")
            p = R.nn.softmax(y)
            return p

    check(Before, Expected)


def test_an_existing_cast_is_reused():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                low = R.astype(x, "bfloat16")
                a = R.matmul(x, x)
                b = R.nn.relu(low)
                R.output(a, b)
            return (a, b)

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                low = R.astype(x, "bfloat16")
                a = R.matmul(low, low, out_dtype="float32")
                b = R.nn.relu(low)
                R.output(a, b)
            return (a, b)

    check(Before, Expected)


def test_a_cast_of_a_cast_back_to_where_it_came_from_is_cancelled():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float16")) -> R.Tensor((4, 4), "float16"):
            with R.dataflow():
                wide = R.astype(x, "float32")
                back = R.astype(wide, "float16")
                y = R.nn.relu(back)
                R.output(y)
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float16")) -> R.Tensor((4, 4), "float16"):
            with R.dataflow():
                y = R.nn.relu(x)
                R.output(y)
            return y

    check(Before, Expected, dtype="float16")


def test_a_rounding_written_by_hand_stays():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            with R.dataflow():
                low = R.astype(x, "bfloat16")
                rounded = R.astype(low, "float32")
                y = R.exp(rounded)
                R.output(y)
            return y

    check_unchanged(Before)


def test_a_rounding_written_by_hand_stays_where_its_operand_became_low():
    # The product stores bfloat16 anyway. The cast that is left costs nothing and keeps the product from being free.
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "bfloat16")) -> R.Tensor((4, 4), "float32"):
            with R.dataflow():
                y = R.matmul(x, x, out_dtype="float32")
                low = R.astype(y, "bfloat16")
                rounded = R.astype(low, "float32")
                z = R.exp(rounded)
                R.output(z)
            return z

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "bfloat16")) -> R.Tensor((4, 4), "float32"):
            with R.dataflow():
                y = R.matmul(x, x)
                low = R.astype(y, "bfloat16")
                rounded = R.astype(low, "float32")
                z = R.exp(rounded)
                R.output(z)
            return z

    check(Before, Expected)


def test_a_rounding_that_is_provably_repeated_is_dropped():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "bfloat16")) -> R.Tensor((4, 4), "float32"):
            with R.dataflow():
                y = R.matmul(x, x, out_dtype="float32")
                low = R.astype(y, "bfloat16")
                z = R.matmul(low, low, out_dtype="float32")
                R.output(z)
            return z

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "bfloat16")) -> R.Tensor((4, 4), "float32"):
            with R.dataflow():
                y = R.matmul(x, x)
                z = R.matmul(y, y, out_dtype="float32")
                R.output(z)
            return z

    check(Before, Expected)


def test_a_product_that_its_author_stores_low_is_not_widened():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "bfloat16"):
            y = R.matmul(x, x, out_dtype="bfloat16")
            z = R.exp(y)
            return z

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "bfloat16"):
            low = R.astype(x, "bfloat16")
            y = R.matmul(low, low, out_dtype="bfloat16")
            wide = R.astype(y, "float32")
            z = R.exp(wide)
            result = R.astype(z, "bfloat16")
            return result

    check(Before, Expected)


def test_a_widening_cast_and_its_operand_share_one_cast():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "bfloat16")):
            with R.dataflow():
                wide = R.astype(x, "float32")
                a = R.exp(wide)
                b = R.matmul(wide, wide)
                c = R.sqrt(x)
                d = R.astype(c, "float32")
                R.output(a, b, d)
            return (a, b, d)

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "bfloat16")):
            with R.dataflow():
                wide = R.astype(x, "float32")
                a = R.exp(wide)
                b = R.matmul(x, x, out_dtype="float32")
                c = R.sqrt(wide)
                d = c
                R.output(a, b, d)
            return (a, b, d)

    check(Before, Expected)


def test_two_equal_casts_become_one():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                a = R.astype(x, "bfloat16")
                b = R.astype(x, "bfloat16")
                c = R.exp(R.astype(a, "float32"))
                d = R.sqrt(R.astype(b, "float32"))
                R.output(c, d)
            return (c, d)

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                a = R.astype(x, "bfloat16")
                wide = R.astype(a, "float32")
                c = R.exp(wide)
                d = R.sqrt(wide)
                R.output(c, d)
            return (c, d)

    check(Before, Expected)


def test_a_module_without_floating_point_tensors_is_left_alone():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "int32"), d: R.Tensor((4, 4), "float64")):
            with R.dataflow():
                y = R.matmul(x, x)
                z = R.exp(d)
                back = R.astype(z, "int32")
                w = R.add(y, back)
                R.output(w, z)
            return (w, z)

    check_unchanged(Before)


def test_a_cast_from_float64_is_not_a_cast_of_the_pass():
    @I.ir_module
    class Before:
        @R.function
        def main(d: R.Tensor((4, 4), "float64")) -> R.Tensor((4, 4), "float32"):
            x = R.astype(d, "float32")
            y = R.exp(x)
            return y

    check_unchanged(Before)
    assert amp.autocast(Before).report.casts == 0


def test_it_works_inside_a_sequence_of_passes():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                _ = R.exp(x)
                y = R.matmul(x, x)
                R.output(y)
            return y

    cast = amp.AutoCast("float16")
    after = tvm.transform.Sequential([relax.transform.DeadCodeElimination(), cast])(Before)
    names = [binding.value.op.name for binding in after["main"].body.blocks[0].bindings]
    assert names == ["relax.astype", "relax.matmul"]
    assert cast.report is not None
    assert cast.report.casts == 1
