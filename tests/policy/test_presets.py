"""Presets: what each makes of every operator, and of the two-product model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
import type_hints
from autocast import amp
from autocast.errors import PolicyWarning
from autocast.policy import PRESETS, UNSUPPORTED, Policy, operator_rules
from autocast.policy.choices import UNDECIDED
from tests.type_hints.samples import SAMPLES, float_dtypes, infer, retype
from type_hints import Argument

ROWS = {row.name: row for row in type_hints.list_rules()}
DECIDED = [name for name in SAMPLES if ROWS[name].label not in UNDECIDED]
RULES = {preset: {row.name: row for row in operator_rules(Policy(preset=preset))} for preset in PRESETS}


def asked(preset: str, name: str, dtype: str):
    """A sample call's arguments as a preset wants them, and the type that TVM infers for its result."""
    call = SAMPLES[name]()
    arguments = [Argument(expr, expr.ty) for expr in call.args]
    hints = RULES[preset][name].rule(arguments, call.ty, dtype)[: len(call.args)]
    args = [retype(expr, hint) for expr, hint in zip(call.args, hints, strict=True)]
    return args, infer(call, args)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_an_answer_for_every_operator(preset):
    assert RULES[preset].keys() == ROWS.keys()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", DECIDED)
def test_mp4_is_low_wherever_tvm_takes_it_and_the_operator_is_not_listed(name, dtype):
    args, _ = asked("mp4", name, dtype)
    concerned = [args[at] for at in ROWS[name].rule.which if at < len(args)]
    expected = "float32" if name in UNSUPPORTED else dtype
    assert {found for arg in concerned for found in float_dtypes(arg.ty)} == {expected}


@pytest.mark.parametrize("name", DECIDED)
def test_mp1_is_low_in_the_operands_of_products_only(name):
    args, _ = asked("mp1", name, "bfloat16")
    found = {dtype for arg in args for dtype in float_dtypes(arg.ty)}
    is_product = ROWS[name].label == "low" and name != "relax.nn.cross_entropy"
    assert ("bfloat16" in found) == is_product
    assert RULES["mp1"][name].label == ("widening" if is_product else "float32")


def test_the_masks_of_attention_are_float32_under_every_preset():
    for preset in PRESETS:
        args, _ = asked(preset, "relax.nn.attention_bias", "float16")
        assert float_dtypes(args[3].ty) == ["float32"]


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_every_operator_that_is_listed_as_unsupported_exists(name):
    assert name in ROWS


@I.ir_module
class Attention:
    @R.function
    def main(q: R.Tensor((2, 4, 2, 8), "float32"), k: R.Tensor((2, 4, 2, 8), "float32")):
        with R.dataflow():
            context = R.nn.attention(q, k, k)
            gv = R.nn.relu(context)
            R.output(gv)
        return gv


def test_mp1_widens_what_an_operator_stores_low():
    out = amp.autocast(Attention, policy="mp1")
    stored = [binding.var.ty.dtype for binding in out["main"].body.blocks[0].bindings]
    assert stored == ["bfloat16", "bfloat16", "bfloat16", "float32", "float32"]
    assert out.report.casts == 3


@I.ir_module
class TwoProducts:
    @R.function
    def main(a: R.Tensor((8, 8), "float32"), b: R.Tensor((8, 8), "float32"), c: R.Tensor((8, 8), "float32")):
        with R.dataflow():
            matmul_1 = R.matmul(a, b)
            act_1 = R.nn.relu(matmul_1)
            matmul_2 = R.matmul(act_1, c)
            out = R.nn.relu(matmul_2)
            R.output(out)
        return out


LOW, FULL = "bfloat16", "float32"


@pytest.mark.parametrize(
    ("policy", "expected", "casts"),
    [
        ("mp0", [(FULL, FULL)] * 4, 0),
        ("mp1", [(LOW, FULL), (FULL, FULL)] * 2, 4),
        ("mp4", [(LOW, LOW)] * 4, 4),
        ("default", [(LOW, LOW)] * 4, 4),
        ("pure", [(LOW, LOW)] * 4, 4),
        ("rules", [(LOW, LOW), (LOW, LOW), (LOW, FULL), (FULL, FULL)], 3),
        ("mp4, out_dtype=bfloat16", [(LOW, LOW)] * 4, 3),
        ("mp0, mixed_ops=gemm", [(LOW, FULL), (FULL, FULL)] * 2, 4),
        ("mp4, unsupported_ops=nn.relu", [(LOW, LOW), (FULL, FULL)] * 2, 6),
        ("mp1, low_ops=nn.relu", [(LOW, FULL), (LOW, LOW)] * 2, 6),
    ],
)
def test_the_two_product_model_is_as_described(policy, expected, casts):
    report = amp.autocast(TwoProducts, policy=policy).report
    assert [(decision.mode, decision.result) for decision in report.decisions] == expected
    assert report.casts == casts


@I.ir_module
class Masked:
    @R.function
    def main(x: R.Tensor((4, 8), "float32"), mask: R.Tensor((4, 8), "bool")):
        lowest = R.const(-3.4028234663852886e38, "float32")
        scaled = R.multiply(x, R.const(0.5, "float32"))
        tiny = R.multiply(scaled, R.const(1e-7, "float32"))
        masked = R.where(mask, tiny, lowest)
        return masked


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", [LOW, LOW, FULL]), ("float16", ["float16", FULL, FULL])])
def test_a_literal_that_is_out_of_range_keeps_its_operator_in_float32(dtype, expected):
    decisions = amp.autocast(Masked, policy=f"mp4, {dtype}").report.decisions
    assert [decision.mode for decision in decisions] == expected
    assert decisions[-1].why == f"mp4: a literal that {dtype} cannot hold"
    listed = amp.autocast(Masked, policy=f"mp4, {dtype}, low_ops=where").report.decisions
    assert listed[-1].mode == dtype, "who names an operator means it"


@I.ir_module
class MaskedScores:
    """Scores that are masked by the lowest number: chosen, or added, or what it is multiplied with."""

    @R.function
    def main(scores: R.Tensor((4, 8), "float32"), mask: R.Tensor((4, 8), "bool"), values: R.Tensor((8, 2), "float32")):
        lowest = R.const(-3.4028234663852886e38, "float32")
        chosen = R.nn.softmax(R.where(mask, scores, lowest))
        bias = R.reshape(R.where(mask, R.const(0.0, "float32"), lowest), (4, 8))
        added = R.nn.softmax(R.add(scores, bias))
        hidden = R.astype(R.logical_not(mask), "float32")
        scaled = R.nn.softmax(R.subtract(scores, R.negative(R.multiply(hidden, lowest))))
        return R.matmul(R.add(R.add(chosen, added), scaled), values)


@pytest.mark.parametrize("policy", ["mp4", "pure", "mp4, float16", "default", "rules", "rules, float16"])
@pytest.mark.parametrize("hints", [{}, {"nn.softmax": type_hints.follow(1)}], ids=["tables", "softmax follows"])
def test_a_row_of_which_all_is_masked_has_equal_weights_and_none_that_is_nan(policy, hints):
    with type_hints.CustomTypeHint(hints):
        mixed = amp.autocast(MaskedScores, policy=policy)
    modes = {decision.operator: decision.mode for decision in mixed.report.decisions}
    assert modes["relax.nn.softmax"] == FULL and modes["relax.matmul"] != FULL
    weights = autocast.from_relax(mixed)(np.ones((4, 8), "f4"), np.zeros((4, 8), bool), np.ones((8, 2), "f4"))
    np.testing.assert_allclose(weights, 3.0, rtol=1e-2)


def test_a_parameter_that_overflows_masks_what_it_is_added_to():
    module = nn.Module()
    module.register_buffer("mask", torch.full((8,), -3.4e38))
    module.forward = lambda scores: (scores + module.mask).softmax(-1)
    model = autocast.from_torch(module, (torch.ones(4, 8),))
    with pytest.warns(PolicyWarning, match="mask stays float32"):
        mixed = amp.autocast(model, policy="mp4, float16")
    np.testing.assert_allclose(mixed(torch.ones(4, 8)), 1 / 8, rtol=1e-3)


LOWEST = torch.finfo(torch.float32).min

#: Ways in which models write masks of (2, 6), of which the second row hides all, from what lets all pass in the first.
MASKS = {
    "joined": lambda seen: torch.cat([(1 - seen[:, :2]) * LOWEST, _hidden(seen)[:, 2:]], -1),
    "stacked": lambda seen: torch.stack([seen[0] * 0, torch.full_like(seen[0], LOWEST)]),
    "padded": lambda seen: F.pad(seen[:1] * 0, (0, 0, 0, 1), value=LOWEST),
    "bounded": lambda seen: torch.clamp(torch.log(seen), min=LOWEST),
    "split and taken": lambda seen: torch.cat(_hidden(seen).split(3, -1)[::-1], -1)[torch.arange(2)],
    "looked up": lambda seen: F.embedding(seen.long(), torch.tensor([[LOWEST], [0.0]])).squeeze(-1),
    "scattered": lambda seen: torch.zeros_like(seen).scatter(0, torch.ones(1, 6, dtype=torch.long), LOWEST),
    "reduced": lambda seen: -_hidden(seen).abs().amax(-1, keepdim=True).expand(2, 6),
    "summed": lambda seen: ((1 - seen) * -1e9).sum(-1, keepdim=True) + torch.zeros(2, 6),
    "pooled": lambda seen: -F.max_pool1d(F.relu(-_hidden(seen)), 3, 1, 1),
    "chosen by a branch": lambda seen: torch.cond(seen.sum() > 0, _hidden, torch.zeros_like, (seen,)),
    "sorted": lambda seen: torch.sort(_hidden(seen), -1).values,
}


def _hidden(seen: torch.Tensor) -> torch.Tensor:
    return torch.where(seen > 0, 0.0, LOWEST)


@pytest.mark.parametrize("way", MASKS)
def test_however_a_mask_is_made_of_its_lowest_number_a_row_of_it_has_equal_weights(way):
    module = nn.Module()
    module.forward = lambda scores, seen: torch.softmax(scores + MASKS[way](seen), -1)
    scores, seen = torch.randn(2, 6), torch.tensor([[1.0] * 6, [0.0] * 6])
    weights = module(scores, seen)
    torch.testing.assert_close(weights[1], torch.full((6,), 1 / 6))
    model = autocast.from_torch(module, (scores, seen))
    for policy in ("mp4, float16", "default"):
        mixed = autocast.to_torch(amp.autocast(model, policy=policy))(scores, seen)
        torch.testing.assert_close(mixed, weights, atol=1e-2, rtol=0, msg=policy)


def test_what_is_bounded_by_numbers_that_the_low_dtype_holds_is_free_again():
    module = nn.Module()
    module.forward = lambda scores, seen: torch.softmax(torch.clamp(_hidden(seen), -9.0, 9.0) + scores, -1)
    low = amp.autocast(autocast.from_torch(module, (torch.ones(2, 6), torch.ones(2, 6))), policy="mp4").report
    modes = {decision.operator: decision.mode for decision in low.decisions}
    assert (modes["relax.clip"], modes["relax.nn.softmax"]) == (FULL, "bfloat16")


def test_a_custom_hint_that_follows_says_nothing_of_what_the_low_dtype_cannot_hold_and_one_that_is_low_does():
    with type_hints.CustomTypeHint({"nn.softmax": type_hints.follow(1)}):
        report = amp.autocast(MaskedScores, policy="rules, float16").report
    softmax = [decision for decision in report.decisions if decision.operator == "relax.nn.softmax"]
    assert {(d.mode, d.level) for d in softmax} == {(FULL, "custom hint")}
    assert softmax[0].why == "a literal that float16 cannot hold, which CustomTypeHint's follow(1) does not change"
    with type_hints.CustomTypeHint({"nn.softmax": type_hints.low(1)}):
        report = amp.autocast(MaskedScores, policy="rules, float16").report
    assert {d.mode for d in report.decisions if d.operator == "relax.nn.softmax"} == {"float16"}, (
        "who says low means it"
    )


@I.ir_module
class Converted:
    @R.function
    def main(a: R.Tensor((8, 8), "float32"), b: R.Tensor((8, 8), "float32"), flag: R.Tensor((), "bool")):
        product = R.matmul(a, b)
        wide = R.astype(product, "float32")
        pair = (product, wide)
        low_side = R.nn.relu(pair[0])
        if flag:
            chosen = R.nn.relu(wide)
        else:
            chosen = R.nn.relu(low_side)
        after = R.exp(chosen)
        narrow = R.astype(after, "bfloat16")
        again = R.exp(narrow)
        counted = R.astype(R.astype(again, "int32"), "float32")
        last = R.exp(counted)
        return (low_side, after, again, last)


@I.ir_module
class Calling:
    @R.function
    def helper(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
        inside = R.exp(x)
        return inside

    @R.function
    def main(a: R.Tensor((8, 8), "float32")):
        cls = Calling
        wide = R.astype(a, "float32")
        called = cls.helper(wide)
        outside = R.exp(called)
        return outside


def test_default_follows_a_conversion_into_functions_and_out_of_them():
    modes = {d.binding: d.mode for d in amp.autocast(Calling, policy="default").report.decisions}
    assert (modes["inside"], modes["outside"]) == (FULL, FULL)


def test_default_is_float32_after_a_conversion_and_low_again_after_the_next():
    modes = {d.binding: d.mode for d in amp.autocast(Converted, policy="default").report.decisions}
    assert modes["product"] == LOW
    assert modes["low_side"] == LOW
    assert (modes["after"], modes["again"], modes["last"]) == (FULL, LOW, LOW)
