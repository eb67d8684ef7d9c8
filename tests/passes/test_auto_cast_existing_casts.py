"""Before and after: casts that an author wrote are shared, cancelled or kept."""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R

from autocast import amp
from tests.passes.golden import check, check_unchanged


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
