"""Who decides a call: the order of `autocast.policy.precedence`, whatever any two levels say."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from autocast import amp
from autocast.errors import CastingRuleError, PolicyError, PolicyWarning
from autocast.ir import Place, PlacedBuilder
from autocast.policy import LEVELS, Policy
from type_hints import full, low

CHOICES = ("low", "float32")


def module(region: str = "", path: str = "net.head") -> tvm.IRModule:
    """`chosen = softmax(matmul(x, w))`, with `chosen` in a region and a torch module; `w` reaches matmul transposed."""
    x, w = (relax.Var(name, relax.TensorType((4, 4), "float32")) for name in "xw")
    builder = PlacedBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, relax.op.permute_dims(w)), "y")
            builder.place = Place(path, region)
            chosen = builder.emit(relax.op.nn.softmax(y), "chosen")
            builder.place = None
            result = builder.emit_output(relax.op.negative(chosen), "result")
        builder.emit_func_output(result)
    return builder.get()


def decision(mod: tvm.IRModule, binding: str = "chosen", **fields: object):
    """What was decided about one binding."""
    report = amp.autocast(mod, policy=Policy(**fields)).report
    return next(decision for decision in report.decisions if decision.binding == binding)


def list_of(choice: str) -> dict[str, object]:
    return {"low_ops" if choice == "low" else "float32_ops": ("softmax",)}


#: Where each level says its choice: in the module's region, the policy, or a custom hint.
WAYS = {
    "region": {
        "code": lambda choice: {"region": "bfloat16" if choice == "low" else "float32"},
        "path": lambda choice: {f"{choice}_regions": ("net",)},
    },
    "name pattern": {"name": lambda choice: {f"{choice}_names": ("chos*",)}},
    "custom hint": {"hint": lambda choice: {"hint": low(1) if choice == "low" else full(1)}},
    "operator list": {"list": list_of},
    "preset": {"preset": lambda choice: {"preset": "mp4" if choice == "low" else "mp1"}},
}


@st.composite
def sayings(draw):
    """A choice for some of the levels, and what expresses each."""
    chosen = draw(st.dictionaries(st.sampled_from(list(WAYS)), st.sampled_from(CHOICES)))
    said: dict[str, object] = {}
    for level, choice in chosen.items():
        said |= WAYS[level][draw(st.sampled_from(list(WAYS[level])))](choice)
    return chosen, said


@given(sayings())
@settings(max_examples=150, deadline=None)
def test_the_first_level_that_says_anything_decides(case):
    chosen, said = case
    region, hint = said.pop("region", ""), said.pop("hint", None)
    with ExitStack() as stack:
        if hint is not None:
            stack.enter_context(amp.CustomTypeHint({"softmax": hint}))
        found = decision(module(region), **said)
    level = next((level for level in LEVELS if level in chosen), "rule")
    assert found.level == level
    assert found.mode == ("bfloat16" if chosen.get(level) == "low" else "float32")


@pytest.mark.parametrize("higher", list(WAYS))
@pytest.mark.parametrize("lower", list(WAYS))
def test_of_two_levels_the_higher_one_decides(higher, lower):
    if LEVELS.index(higher) >= LEVELS.index(lower):
        return
    for choice, other in (CHOICES, CHOICES[::-1]):
        said = {}
        for level, what in ((higher, choice), (lower, other)):
            for way in WAYS[level].values():
                said |= way(what)
        region, hint = said.pop("region", ""), said.pop("hint", None)
        with ExitStack() as stack:
            if hint is not None:
                stack.enter_context(amp.CustomTypeHint({"softmax": hint}))
            found = decision(module(region), **said)
        assert (found.level, found.mode) == (higher, "bfloat16" if choice == "low" else "float32")


@pytest.mark.parametrize("preset", ["mp0", "mp1", "mp4", "default", "rules", "pure"])
def test_a_custom_hint_works_under_every_preset(preset):
    with amp.CustomTypeHint({"softmax": low(1), "negative": full(1)}):
        assert decision(module(), preset=preset).mode == "bfloat16"
        assert decision(module(), "result", preset=preset).mode == "float32"


def test_the_code_wins_over_patterns_of_module_paths():
    found = decision(module("float32"), low_regions=("net.head",))
    assert (found.level, found.mode) == ("region", "float32")


def test_a_pattern_of_a_module_selects_what_is_inside_it():
    assert decision(module(), low_regions=("net",)).mode == "bfloat16"
    assert decision(module(), low_regions=("/.*head/",)).mode == "bfloat16"
    with pytest.warns(PolicyWarning, match=r"low_regions has 'hea'.*nearest: net.head"):
        assert decision(module(), low_regions=("hea",)).level == "rule"


def test_names_that_are_included_win_over_names_that_are_excluded():
    assert decision(module(), low_names=("chosen",), float32_names=("*",)).mode == "bfloat16"
    assert decision(module(), low_regions=("net.*",), float32_regions=("net",)).mode == "bfloat16"


def test_a_parameter_selects_the_calls_that_read_it_in_any_layout():
    for binding in ("lv", "y"):
        found = decision(module(), binding, float32_names=("w",))
        assert (found.level, found.mode) == ("name pattern", "float32")
    assert decision(module(), float32_names=("w",)).level == "rule"


def test_guarded_leaves_alone_what_is_in_no_guard():
    fields = {"guarded": True, "low_ops": ("softmax",), "preset": "mp4"}
    assert decision(module("guard"), **fields).mode == "bfloat16"
    for region, level in (("", "region"), ("leave", "region")):
        found = decision(module(region), **fields)
        assert (found.level, found.rule, found.mode) == (level, "leave", "float32")


def test_a_region_in_another_low_dtype_than_the_policys_is_an_error():
    with pytest.raises(PolicyError, match=r"%chosen of net.head is in .*dtype='float16'.*policy's dtype is 'bfloat16'"):
        amp.autocast(module("float16"))


def test_a_condition_decides_by_an_attribute_of_the_call():
    conditions = [("softmax", "axis", (0, -1))]
    assert decision(module(), conditional_float32_ops=conditions, low_ops=("softmax",)).mode == "float32"
    conditions = [("softmax", "axis", (0,))]
    assert decision(module(), conditional_float32_ops=conditions, low_ops=("softmax",)).mode == "bfloat16"
    with pytest.raises(PolicyError, match=r"asks for the attribute 'axes' of relax.nn.softmax; it has axis"):
        decision(module(), conditional_float32_ops=[("softmax", "axes", (0,))])


def test_mixed_operators_take_one_precision_and_give_the_other():
    found = decision(module(), mixed_ops={"gemm", "softmax"}, preset="mp0")
    assert (found.mode, found.result) == ("float32", "bfloat16")
    found = decision(module(), "y", mixed_ops={"gemm", "softmax"}, preset="mp0")
    assert (found.mode, found.result) == ("bfloat16", "float32")


def test_a_low_list_cannot_make_an_operator_low_that_tvm_refuses():
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    slope = relax.Var("slope", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, slope]):
        builder.emit_func_output(builder.emit(relax.op.nn.prelu(x, slope, 1)))
    with pytest.raises(CastingRuleError, match="TVM refuses the dtypes"):
        amp.autocast(builder.get(), policy="low_ops=(nn.prelu,)")
    assert amp.autocast(builder.get(), policy="mp4").report.casts == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"low_ops": ("gelu",)}, r"low_ops has 'nn.gelu', and no operator of the module is that; nearest: .*"),
        ({"float32_names": ("choosen",)}, r"float32_names has 'choosen'.*nearest: chosen"),
        ({"low_regions": ("net.haed",)}, r"low_regions has 'net.haed'.*nearest: net.head"),
        ({"conditional_float32_ops": [("gelu", "axis", "1")]}, r"conditional_float32_ops has 'nn.gelu'"),
    ],
)
def test_an_entry_that_concerns_nothing_warns_with_what_it_may_have_meant(fields, message):
    with pytest.warns(PolicyWarning, match=message):
        amp.autocast(module(), policy=Policy(**fields))


def test_an_entry_that_a_higher_level_overrules_does_not_warn():
    amp.autocast(module("float32"), policy=Policy(low_regions=("net",), low_names=("chosen",), low_ops=("softmax",)))
