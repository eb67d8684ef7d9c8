"""Calls that are alike share a signature, and what is asked of them is asked once; others do not."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import type_hints
from autocast import amp
from autocast.ir import Reading, identity
from autocast.kernels.cast_costs import KernelCosts
from autocast.kernels.targets.cpu.instruction_sets import detect_target
from autocast.passes.auto_cast import auto_cast
from autocast.passes.casting.signatures import Signature, Signatures, Types
from autocast.policy import Policy
from benchmarks.synthetic import layered


@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor((4, 4), "float32"),
        y: R.Tensor((4, 4), "float32"),
        low: R.Tensor((4, 4), "bfloat16"),
        a: R.Tensor(("n", 4), "float32"),
        b: R.Tensor(("m", 4), "float32"),
    ):
        with R.dataflow():
            first = R.nn.softmax(x, axis=-1)
            other_operand = R.nn.softmax(y, axis=-1)
            other_axis = R.nn.softmax(x, axis=0)
            other_dtype = R.nn.softmax(low, axis=-1)
            other_operator = R.nn.log_softmax(x, axis=-1)
            reshaped = R.reshape(x, (2, 8))
            reshaped_alike = R.reshape(y, (2, 8))
            reshaped_otherwise = R.reshape(y, (8, 2))
            joined = R.concat((x, y), axis=0)
            joined_alike = R.concat((y, x), axis=0)
            joined_otherwise = R.concat((x, first, y), axis=0)
            of_n = R.nn.relu(a)
            of_n_again = R.nn.relu(a)
            of_m = R.nn.relu(b)
            softmaxes = (first, other_operand, other_axis, other_dtype, other_operator)
            views = (reshaped, reshaped_alike, reshaped_otherwise)
            out = (softmaxes, views, joined, joined_alike, joined_otherwise, of_n, of_n_again, of_m)
            R.output(out)
        return out


def signatures(mod: tvm.IRModule) -> dict[str, Signature]:
    """The signatures of main's calls, by the names of their variables."""
    types, found = Types(), {}
    known = Signatures(types)
    for param in mod["main"].params:
        known.views[identity(param)] = types.of(param.ty)
    for bound in Reading(mod).all_bindings(mod["main"].body):
        if isinstance(bound.value, relax.Call):
            found[bound.var.name] = known.of(bound)
        known.views[bound.key] = types.of(bound.var.ty)
    return found


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("first", "other_operand", True),
        ("first", "other_axis", False),
        ("first", "other_dtype", False),
        ("first", "other_operator", False),
        ("reshaped", "reshaped_alike", True),
        ("reshaped", "reshaped_otherwise", False),
        ("joined", "joined_alike", True),
        ("joined", "joined_otherwise", False),
        ("of_n", "of_n_again", True),
        ("of_n", "of_m", False),
    ],
)
def test_calls_are_alike_in_operator_attributes_and_types(one: str, other: str, alike: bool) -> None:
    found = signatures(Module)
    assert (found[one] is found[other]) == alike


def test_a_rule_of_a_user_is_asked_for_each_call_as_it_may_look_at_expressions() -> None:
    def second_stays_float32(args, _type, dtype):
        asked.append(args[0].expr.name)
        return [type_hints.PrimType("float32" if args[0].expr.name == "y" else dtype)]

    asked: list[str] = []
    with amp.CustomTypeHint({"nn.softmax": second_stays_float32}):
        report = amp.autocast(Module).report
    assert {"x", "y", "low"} <= set(asked)
    modes = {decision.binding: decision.mode for decision in report.decisions}
    assert modes["first"] == "bfloat16"
    assert modes["other_operand"] == "float32"


def test_a_cost_is_asked_once_for_calls_that_are_alike() -> None:
    class Counting(KernelCosts):
        asked = 0

        def cast(self, *question):
            self.asked += 1
            return super().cast(*question)

    def asked(size: int) -> int:
        costs = Counting(detect_target())
        auto_cast(layered(size), Policy(), costs)
        return costs.asked

    assert 0 < asked(5 * 88) == asked(50 * 88)
