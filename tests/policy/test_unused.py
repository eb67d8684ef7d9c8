"""Entries that concern nothing are said once, at the user's line, with what may have been meant."""

from __future__ import annotations

import warnings

import pytest
import torch
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast import amp
from autocast.errors import PolicyWarning
from tests.training.trainers import batch, make_trainer
from type_hints import full, low


@I.ir_module
class Sums:
    @R.function
    def main(x: R.Tensor((4,), "float32")):
        with R.dataflow():
            total = R.sum(x)
            out = R.exp(total)
            R.output(out)
        return out


def said_by(call) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call()
    return said


@pytest.mark.parametrize(
    "call",
    [
        lambda: amp.autocast(Sums, policy="float32_ops=erf, low_names=totl"),
        lambda: amp.AutoCast(policy="float32_ops=erf, low_names=totl")(Sums),
        lambda: tvm.transform.Sequential([amp.AutoCast(policy="float32_ops=erf, low_names=totl")])(Sums),
    ],
    ids=["function", "pass", "sequence of passes"],
)
def test_each_unused_entry_is_a_warning_at_the_line_that_led_there(call):
    said = said_by(call)
    assert [str(warning.message) for warning in said] == [
        "Policy: float32_ops has 'erf', and no operator of the module is that; nearest: none that is alike",
        "Policy: low_names has 'totl', and no name of the module is that; nearest: total, out",
    ]
    assert {(warning.category, warning.filename) for warning in said} == {(PolicyWarning, __file__)}


def test_an_unused_entry_of_custom_type_hint_is_a_warning_too():
    with amp.CustomTypeHint({"relax.exp": full(1), "nn.softmax": full(1)}), amp.CustomTypeHint({"sum": full(1)}):
        said = said_by(lambda: amp.autocast(Sums))
    assert [str(warning.message).partition(",")[0] for warning in said] == ["CustomTypeHint has 'nn.softmax'"]
    assert said_by(lambda: amp.autocast(Sums)) == []


def test_the_report_holds_what_is_unused():
    with pytest.warns(PolicyWarning):
        report = amp.autocast(Sums, policy="low_regions=encoder").report
    assert [(unused.field, unused.entry) for unused in report.unused] == [("Policy: low_regions", "encoder")]


@pytest.mark.parametrize(
    ("entry", "count"),
    [
        ("float32_ops=nn.softmax", 1),  # in neither the training step nor what is evaluated
        ("float32_ops=tanh", 0),  # in both
        ("float32_ops=sqrt", 0),  # in the optimizer alone
        ("float32_names=gv", 0),  # in what is evaluated alone
    ],
)
def test_a_trainer_warns_once_and_of_what_it_never_uses(entry, count):
    trainers = []
    said = said_by(lambda: trainers.append(make_trainer(amp=entry)))
    assert [warning.category for warning in said] == [PolicyWarning] * count
    assert all("/tests/" in warning.filename for warning in said)
    assert said_by(lambda: trainers[0].evaluate([batch(0)])) == []


def test_an_operator_inside_of_attention_is_answered_by_the_operator_that_has_it() -> None:
    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    model = autocast.from_torch(Attention(), (torch.ones(1, 2, 4, 8),))
    with (
        amp.CustomTypeHint({"nn.softmax": low(1)}),
        pytest.warns(PolicyWarning, match=r"nearest: nn\.attention, which computes nn\.softmax inside in float32"),
    ):
        amp.autocast(model)
