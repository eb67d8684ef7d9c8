"""Before and after: functions of several blocks, of dataflow and plain."""

from __future__ import annotations

from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from autocast import amp, from_relax
from tests.passes.golden import check


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


def test_an_output_that_declares_a_shape_is_seen_by_later_blocks():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                a = R.matmul(x, x)
                b = R.match_cast(a, R.Tensor((4, 4), "float32"))
                R.output(b)
            c = R.exp(b)
            return c

    mod = amp.autocast(Before)
    relax.analysis.well_formed(mod)
    assert [str(var.ty) for var in mod["main"].body.blocks[-1].bindings[-1].value.args] == [
        'R.Tensor((4, 4), dtype="float32")'
    ]


def test_a_type_that_names_a_shape_keeps_it():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), sizes: R.Tensor((2,), "int64")):
            k, m = T.int64(), T.int64()
            a = R.matmul(x, x)
            s = R.shape_of(R.nn.relu(a))
            b = R.add(R.zeros(s, "float32"), R.const(1.0))
            t = R.match_cast(R.tensor_to_shape(sizes), R.Shape([k, m]))
            c = R.full(t, R.const(0.5, "float32"), dtype="float32")
            d = R.exp(c)
            return (b, c, d)

    relax.analysis.well_formed(amp.autocast(Before))


def test_a_result_that_an_operator_stores_in_another_dtype_is_seen_after_its_block():
    @I.ir_module
    class Attention:
        @R.function
        def main(w: R.Tensor((1, 1, 2, 2), "float32")):
            with R.dataflow():
                x = R.call_pure_packed("vm.builtin.copy", w, ty_args=R.Tensor((1, 1, 2, 2), "float32"))
                scores = R.full(R.shape([1, 2, 1, 1]), R.const(-0.5, "float32"), "float32")
                y = R.nn.attention(x, x, x, scores)
                R.output(scores, y, x)
            z = R.nn.avg_pool2d(y, (2, 2), padding=(1, 1), count_include_pad=False)
            return z

    relax.analysis.well_formed(amp.autocast(from_relax(Attention), dtype="float16", preset="mp1").mod)  # else an error
