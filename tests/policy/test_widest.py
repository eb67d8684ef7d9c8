"""Operators that take the widest dtype among their arguments: what is narrower is cast, and nothing else."""

from __future__ import annotations

import pytest
import tvm
from hypothesis import given, settings
from tvm.script import ir as I
from tvm.script import relax as R

import type_hints
from autocast import amp
from autocast.errors import PolicyError
from autocast.ir import all_bindings, dtype_of, identity, op_name, relax_functions
from tests.passes.random_modules import modules


def test_only_what_is_narrower_is_cast_and_two_low_arguments_stay_low():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), y: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                a = R.matmul(x, x)
                b = R.matmul(y, y)
                both = R.add(a, b)
                c = R.matmul(both, both)
                one = R.add(c, R.exp(y))
                d = R.matmul(one, x)
                R.output(d)
            return d

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((4, 4), "float32"), y: R.Tensor((4, 4), "float32")):
            with R.dataflow():
                x1 = R.astype(x, "bfloat16")
                a = R.matmul(x1, x1)
                y1 = R.astype(y, "bfloat16")
                b = R.matmul(y1, y1)
                both = R.add(a, b)
                c = R.matmul(both, both, out_dtype="float32")
                one = R.add(c, R.exp(y))
                one1 = R.astype(one, "bfloat16")
                d = R.matmul(one1, x1, out_dtype="float32")
                R.output(d)
            return d

    tvm.ir.assert_structural_equal(amp.autocast(Before, policy="widest_ops=add"), Expected)


def test_a_float32_argument_that_a_rule_would_round_is_not_rounded():
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((64, 64), "float32"), other: R.Tensor((64, 64), "float32")):
            with R.dataflow():
                y = R.add(R.matmul(x, x), other)
                z = R.matmul(y, y)
                R.output(z)
            return z

    rules, widest = (amp.autocast(Module, policy=policy).report for policy in ("low_ops=add", "widest_ops=add"))
    assert [[d.mode for d in report.decisions if d.operator == "relax.add"] for report in (rules, widest)] == [
        ["bfloat16"],
        ["float32"],
    ]
    assert next(d for d in widest.decisions if d.operator == "relax.add").level == "operator list"


def test_an_operator_is_not_in_another_list_too():
    with pytest.raises(PolicyError, match="float32_ops and widest_ops both name 'add'"):
        amp.Policy(float32_ops="add", widest_ops="add")


def called(mod: tvm.IRModule) -> tuple[str, ...]:
    """The operators of several arguments that a module calls."""
    return tuple(name for name in ("add", "multiply", "subtract", "maximum", "where") if f"R.{name}(" in mod.script())


@given(modules())
@settings(max_examples=40, deadline=None)
def test_no_argument_is_narrowed_for_it_and_greedy_never_needs_fewer(mod):
    operators = called(mod)
    result = amp.autocast(mod, policy=amp.Policy(widest_ops=operators))
    assert result.report.is_optimal
    assert result.report.cost <= result.report.greedy_cost
    if "astype" in mod.script():
        return  # what the author narrowed may be an argument
    for _, function in relax_functions(result):
        narrowed = set()
        for binding in all_bindings(function.body):
            value = binding.value
            if op_name(value) == "relax.astype" and dtype_of(value) == "bfloat16":
                narrowed.add(identity(binding.var))
            elif (op_name(value) or "").removeprefix("relax.") in operators and type_hints.derived_name(value) is None:
                assert not narrowed & {identity(arg) for arg in value.args}


def test_the_add_of_a_bias_takes_the_precision_of_its_data():
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((64, 64), "float32"), bias: R.Tensor((64,), "float32")):
            with R.dataflow():
                y = R.add(R.matmul(x, x), bias)
                z = R.matmul(R.add(y, y), y)
                R.output(z)
            return z

    decisions = amp.autocast(Module, policy="widest_ops=add").report.decisions
    assert {d.operator: d.mode for d in decisions} == {
        "relax.matmul": "bfloat16",
        "relax.bias_add": "bfloat16",
        "relax.add": "bfloat16",
    }
