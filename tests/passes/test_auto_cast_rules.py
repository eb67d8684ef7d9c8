"""What AutoCast makes of custom rules, of the options, and of the greedy solver."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from autocast import amp
from tests.passes.golden import check
from type_hints import PrimType, check_dtype, follow, full, gen_hint_helper, low


@I.ir_module
class Biased:
    """A product, its bias, and a product of the sum: the bias is added in low precision where its rule permits."""

    @R.function
    def main(x: R.Tensor((4, 4), "float32"), w: R.Tensor((4, 4), "float32"), b: R.Tensor((4,), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.add(y, b)
            u = R.matmul(z, w)
            R.output(u)
        return u


def never_cast_bias_add(args, ret_type, amp_dtype):
    """A bias is added in float32."""
    return [PrimType("float32")] * 2 + [PrimType(None)]


def cast_bias_add(args, ret_type, amp_dtype):
    data, bias, _ = args
    wanted = amp_dtype if check_dtype(data.checked_type, amp_dtype) else "float32"
    return [gen_hint_helper(data.checked_type, wanted), gen_hint_helper(bias.checked_type, wanted), PrimType(None)]


def values(mod: tvm.IRModule) -> dict[str, tuple[list[str], str]]:
    """For each operator of @main (the last of its name), the dtypes of its arguments and of its result."""
    found = {}
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call) and isinstance(call.op, tvm.ir.Op):
                dtypes = [str(arg.ty.dtype) for arg in call.args if isinstance(arg.ty, relax.TensorType)]
                found[call.op.name.removeprefix("relax.")] = dtypes, str(call.ty.dtype)
    return found


LOW, FULL = "bfloat16", "float32"


def test_the_bias_is_added_in_low_precision_by_default():
    assert values(amp.autocast(Biased))["add"] == ([LOW, LOW], LOW)


def test_rafs_rule_that_never_casts_a_bias_keeps_the_sum_in_float32():
    with amp.CustomTypeHint({"raf.op.bias_add": never_cast_bias_add}):
        after = amp.autocast(Biased)
    assert values(after)["add"] == ([FULL, FULL], FULL)
    assert values(amp.autocast(Biased))["add"] == ([LOW, LOW], LOW)


def test_rafs_rule_that_follows_the_data_gives_what_the_default_gives():
    with amp.CustomTypeHint({"bias_add": cast_bias_add}):
        after = amp.autocast(Biased)
    tvm.ir.assert_structural_equal(after, amp.autocast(Biased))


def test_the_reason_of_a_custom_rule_is_reported():
    with amp.CustomTypeHint({"bias_add": never_cast_bias_add}):
        report = amp.autocast(Biased).report
    decision = next(decision for decision in report.decisions if decision.binding == "z")
    assert decision.mode == "float32"
    assert "A bias is added in float32." in decision.why


@I.ir_module
class Softmax:
    @R.function
    def main(x: R.Tensor((4, 4), "float32")):
        with R.dataflow():
            y = R.matmul(x, x)
            p = R.nn.softmax(y)
            z = R.matmul(p, y)
            R.output(z)
        return z


def test_a_softmax_of_float32_may_have_a_low_result():
    def softmax_rule(args, ret_type, amp_dtype):
        return [PrimType("float32"), PrimType(amp_dtype)]

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                low = R.astype(x, "bfloat16")
                y = R.matmul(low, low, out_dtype="float32")
                p = R.nn.softmax(y)
                p_low = R.astype(p, "bfloat16")
                y_low = R.astype(y, "bfloat16")
                z = R.matmul(p_low, y_low, out_dtype="float32")
                R.output(z)
            return z

    with amp.CustomTypeHint({"softmax": softmax_rule}):
        after = amp.autocast(Softmax, objective="casts")
    relax.analysis.well_formed(after)
    assert values(after)["nn.softmax"] == ([FULL], FULL)
    assert after.report.cost == 3
    with amp.CustomTypeHint({"softmax": softmax_rule}):
        check(Softmax, Expected, objective="casts")


def test_a_product_whose_rule_asks_for_a_low_result_stores_it_low():
    def low_product(args, ret_type, amp_dtype):
        return [PrimType(amp_dtype), PrimType(amp_dtype), PrimType(amp_dtype)]

    with amp.CustomTypeHint({"matmul": low_product}):
        after = amp.autocast(Softmax)
    assert values(after)["matmul"] == ([LOW, LOW], LOW)
    assert str(after["main"].ret_ty.dtype) == FULL


def test_a_product_whose_rule_asks_for_a_float32_result_stores_float32():
    def full_product(args, ret_type, amp_dtype):
        return [PrimType(amp_dtype), PrimType(amp_dtype), PrimType("float32")]

    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "bfloat16")) -> R.Tensor((4, 4), "bfloat16"):
            y = R.matmul(x, x)
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "bfloat16")) -> R.Tensor((4, 4), "bfloat16"):
            y = R.matmul(x, x, out_dtype="float32")
            low = R.astype(y, "bfloat16")
            return low

    with amp.CustomTypeHint({"matmul": full_product}):
        check(Before, Expected)


def test_a_rule_may_want_a_mix():
    def mask_full(args, ret_type, amp_dtype):
        return [PrimType(amp_dtype), PrimType(amp_dtype), PrimType(amp_dtype), PrimType("float32")]

    @I.ir_module
    class Attention:
        @R.function
        def main(q: R.Tensor((1, 4, 2, 8), "bfloat16"), mask: R.Tensor((1, 2, 4, 4), "bfloat16")):
            y = R.nn.attention_bias(q, q, q, mask)
            return y

    with amp.CustomTypeHint({"attention_bias": mask_full}):
        after = amp.autocast(Attention)
    assert values(after)["nn.attention_bias"][0] == [LOW, LOW, LOW, FULL]


def test_an_operator_may_be_kept_in_float32_by_a_table_rule():
    with amp.CustomTypeHint({"matmul": full(2)}):
        after = amp.autocast(Softmax)
    tvm.ir.assert_structural_equal(after, Softmax)
    assert after.report.casts == 0


def test_an_operator_may_be_made_low_by_a_table_rule():
    with amp.CustomTypeHint({"softmax": low(1)}):
        after = amp.autocast(Softmax)
    assert values(after)["nn.softmax"] == ([LOW], LOW)


def test_an_operator_may_follow_by_a_table_rule():
    with amp.CustomTypeHint({"softmax": follow(1)}):
        after = amp.autocast(Softmax)
    assert values(after)["nn.softmax"] == ([LOW], LOW)
    assert after.report.casts == 1


def test_float16_is_taken_where_it_is_asked_for():
    after = amp.autocast(Softmax, dtype="float16")
    assert values(after)["matmul"][0] == ["float16", "float16"]
    assert after.report.dtype == "float16"


def test_the_greedy_solver_follows_the_majority_of_the_operands():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "bfloat16"), w: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                y = R.nn.relu(x)
                wide = R.astype(y, "float32")
                z = R.add(wide, w)
                u = R.exp(z)
                R.output(u)
            return u

    # A tie goes to low precision: the sum is low although its only consumer wants float32.
    greedy = amp.autocast(Before, solver="greedy")
    optimal = amp.autocast(Before)
    assert values(greedy)["add"] == ([LOW, LOW], LOW)
    assert values(optimal)["add"] == ([FULL, FULL], FULL)
    assert (greedy.report.casts, optimal.report.casts) == (2, 1)
    assert greedy.report.lower_bound == optimal.report.cost
    assert not greedy.report.is_optimal


def test_the_report_prints_a_line_with_the_proof_and_a_table_with_reasons():
    report = amp.autocast(Softmax).report
    assert report.summary().startswith(f"casts: {report.casts} (optimal in bytes; greedy: {report.greedy_casts})")
    assert report.summary() in str(report)
    assert "relax.nn.softmax" in str(report)
    assert "exponentials of a row" in str(report)


def test_the_pass_object_tells_of_its_last_run():
    cast = amp.AutoCast(objective="casts")
    assert cast.report is None
    cast(Softmax)
    assert cast.report.objective == "casts"


def convolutions(rank: int) -> tvm.IRModule:
    """A convolution, its bias along the channels, and a convolution of the sum; tensors have `rank` dimensions."""
    data, weight, bias = (
        relax.Var(name, relax.TensorType([*sizes, *[size] * (rank - 2)], "float32"))
        for name, sizes, size in (("x", (2, 4), 8), ("w", (4, 4), 1), ("b", (1, 4), 1))
    )
    convolve = {3: relax.op.nn.conv1d, 4: relax.op.nn.conv2d}[rank]
    builder = relax.BlockBuilder()
    with builder.function("main", [data, weight, bias]):
        with builder.dataflow():
            y = builder.emit(convolve(data, weight), "y")
            z = builder.emit(relax.op.add(y, bias), "z")
            u = builder.emit_output(convolve(z, weight), "u")
        builder.emit_func_output(u)
    return builder.get()


@pytest.mark.parametrize("rank", [3, 4])
def test_the_bias_of_a_convolution_follows_its_custom_rule(rank):
    before = amp.autocast(convolutions(rank))
    with amp.CustomTypeHint({"raf.op.bias_add": never_cast_bias_add}):
        after = amp.autocast(convolutions(rank))
    assert values(before)["add"] == ([LOW, LOW], LOW)
    assert values(after)["add"] == ([FULL, FULL], FULL)
    decision = next(decision for decision in after.report.decisions if decision.binding == "z")
    assert (decision.operator, decision.mode) == ("relax.bias_add", FULL)


def test_rules_may_answer_with_tvms_hints_and_with_the_dtypes_of_integers():
    def rule(args, ret_type, amp_dtype):
        return [tvm.ir.PrimType("float32"), tvm.ir.PrimType("float32"), tvm.ir.PrimType("int64")]

    with amp.CustomTypeHint({"bias_add": rule}):
        assert values(amp.autocast(Biased))["add"] == ([FULL, FULL], FULL)


def test_hints_that_touch_nothing_may_stand_for_what_is_an_attribute_here():
    def rule(args, ret_type, amp_dtype):
        return [PrimType("float32"), PrimType("float32"), *[PrimType(None)] * 7]

    with amp.CustomTypeHint({"raf.op.conv2d": rule}):
        assert values(amp.autocast(convolutions(4)))["nn.conv2d"] == ([FULL, FULL], FULL)


def test_a_hint_of_integers_leaves_an_argument_of_integers_alone():
    @I.ir_module
    class Lookup:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), i: R.Tensor((2,), "int64")):
            with R.dataflow():
                y = R.take(x, i, axis=0)
                R.output(y)
            return y

    def rule(args, ret_type, amp_dtype):
        return [tvm.ir.PrimType(amp_dtype), PrimType("int64")]

    with amp.CustomTypeHint({"raf.op.take": rule}):
        assert values(amp.autocast(Lookup))["take"][0] == [LOW, "int64"]
