"""Before and after: casts that an author wrote are shared, cancelled or kept."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import amp
from autocast.policy import PRESETS
from tests.passes.golden import casts_that_change_nothing, check, check_unchanged, run


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
    # The product stores bfloat16 anyway. The name that is left keeps it from float32, should AutoCast be asked again.
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
                low = y
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


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_no_cast_to_the_dtype_that_a_value_has_is_left(preset):
    @I.ir_module
    class Written:
        @R.function
        def main(
            a: R.Tensor((4, 4), "float32"), b: R.Tensor((4, 4), "bfloat16"), i: R.Tensor((4, 4), "int64")
        ) -> R.Tuple(R.Tensor((4, 4), "bfloat16"), R.Tensor((4, 4), "int64")):
            with R.dataflow():
                wide = R.astype(a, "float32")
                product = R.matmul(wide, a)
                low = R.astype(b, "bfloat16")
                rounded = R.astype(product, "bfloat16")
                twice = R.astype(R.add(low, rounded), "bfloat16")
                whole = R.astype(i, "int64")
                R.output(twice, whole)
            return (twice, whole)

    once = amp.autocast(Written, policy=amp.Policy(preset=preset))
    assert casts_that_change_nothing(once) == []
    # What is shown of a value outside of its block is not lost.
    assert all(type(field) is relax.Var for field in once["main"].body.body.fields)


def test_a_cast_of_whole_numbers_that_changes_nothing_in_a_branch_is_dropped():
    @I.ir_module
    class Branches:
        @R.function
        def main(p: R.Tensor((), "bool"), i: R.Tensor((4,), "int64")) -> R.Tensor((4,), "int64"):
            if p:
                same = R.astype(i, "int64")
                out = R.add(same, same)
            else:
                out = R.astype(i, "int64")
            return out

    once = amp.autocast(Branches)
    assert casts_that_change_nothing(once) == []
    (found,) = run(once, np.array(True), np.arange(4))
    np.testing.assert_array_equal(found, np.arange(0, 8, 2))


def test_what_the_author_of_a_bfloat16_model_rounds_again_stays_rounded_when_autocast_twice():
    @I.ir_module
    class Low:
        @R.function
        def main(x: R.Tensor((8, 8), "bfloat16")) -> R.Tensor((8, 8), "float32"):
            with R.dataflow():
                product = R.matmul(x, x, out_dtype="float32")
                low = R.astype(R.astype(R.astype(product, "bfloat16"), "float32"), "bfloat16")
                z = R.abs(R.astype(low, "float32"))
                R.output(z)
            return z

    once = amp.autocast(Low)
    twice = amp.autocast(once)
    assert casts_that_change_nothing(once) == casts_that_change_nothing(twice) == []
    x = np.random.default_rng(0).normal(size=(8, 8)).astype("bfloat16")
    (z,) = run(twice, x)
    np.testing.assert_array_equal(z, z.astype("bfloat16").astype("float32"))


def test_a_part_in_other_sixteen_bits_stays_in_them():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float16")):
            with R.dataflow():
                a = R.matmul(x, x)
                half = R.astype(a, "float16")
                b = R.matmul(half, w)
                wide = R.astype(b, "float32")
                c = R.matmul(wide, wide)
                R.output(c)
            return c

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float16")):
            with R.dataflow():
                x_bfloat16 = R.astype(x, "bfloat16")
                a = R.matmul(x_bfloat16, x_bfloat16, out_dtype="float32")
                half = R.astype(a, "float16")
                b = R.matmul(half, w)
                wide = R.astype(b, "float32")
                wide_bfloat16 = R.astype(wide, "bfloat16")
                c = R.matmul(wide_bfloat16, wide_bfloat16, out_dtype="float32")
                R.output(c)
            return c

    check(Before, Expected)


def test_a_call_of_two_floats_is_asked_about_the_one_that_may_be_cast():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float16")):
            with R.dataflow():
                y = R.matmul(x, w, out_dtype="float32")
                R.output(y)
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float16")):
            with R.dataflow():
                x_bfloat16 = R.astype(x, "bfloat16")
                y = R.matmul(x_bfloat16, w, out_dtype="float32")
                R.output(y)
            return y

    check(Before, Expected)
