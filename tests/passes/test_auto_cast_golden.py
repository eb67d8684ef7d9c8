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
