"""`Policy` as a value: it reads what it prints, has one form, and refuses to contradict itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autocast import amp
from autocast.errors import PolicyError
from autocast.policy import PRESETS, Policy, as_policy
from autocast.policy.policy import LEGAL

OPERATORS = ("relax.matmul", "nn.conv2d", "nn.relu", "exp", "add", "nn.layer_norm")
names = st.text(min_size=1, max_size=12).filter(lambda text: not text.startswith("/"))


def lists(entries):
    return st.lists(entries, max_size=3)


@st.composite
def policies(draw):
    """Policies that do not contradict themselves."""
    operators = draw(st.permutations(OPERATORS))
    patterns = draw(st.lists(names, max_size=6, unique=True))
    dtype = draw(st.sampled_from(LEGAL["dtype"]))
    sums = LEGAL["accumulation"][: 2 if dtype == "bfloat16" else 1]
    return Policy(
        dtype=dtype,
        out_dtype=draw(st.sampled_from((None, "float32", dtype))),
        low_ops=operators[: draw(st.integers(0, 2))],
        float32_ops=operators[2 : draw(st.integers(2, 4))],
        conditional_float32_ops=[
            (operator, "axis", draw(lists(st.integers(-2, 2) | names))) for operator in draw(lists(st.just("softmax")))
        ],
        unsupported_ops=operators[4:],
        low_names=patterns[:2],
        float32_names=patterns[2:],
        low_regions=patterns[:1],
        float32_regions=patterns[1:],
        guarded=draw(st.booleans()),
        accumulation=draw(st.sampled_from(sums)),
        weight_gradients=draw(st.sampled_from(sums)),
        fp32_params=draw(st.booleans()),
        **{name: draw(st.sampled_from(LEGAL[name])) for name in ("preset", "objective", "solver", "parameters")},
    )


@given(policies())
@settings(max_examples=60, deadline=None)
def test_a_policy_reads_what_it_prints(policy):
    again = Policy.parse(str(policy))
    assert again == policy
    assert hash(again) == hash(policy)
    assert str(again) == str(policy)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_policy_prints_only_what_differs_from_the_default(preset):
    assert str(Policy()) == "Policy()"
    expected = "Policy()" if preset == "rules" else f'Policy(preset="{preset}")'
    assert str(Policy(preset=preset)) == expected
    assert str(Policy(preset="mp1", low_ops=("relax.nn.relu",))) == 'Policy(preset="mp1", low_ops=("nn.relu",))'


def test_the_order_and_the_spelling_of_entries_make_no_difference():
    assert Policy(low_ops=["relax.nn.relu", "exp"]) == Policy(low_ops=("raf.op.exp", "relu", "relax.exp"))
    assert Policy(dtype=torch.float16) == Policy(dtype="float16")
    assert Policy(mixed_ops={"softmax", "gemm"}) == Policy(mixed_ops=("gemm", "softmax"))


def test_pure_stores_parameters_low_unless_told_otherwise():
    assert Policy(preset="pure").parameters == "offline"
    assert Policy(preset="mp4").parameters == "float32"
    assert str(Policy(preset="pure", parameters="float32")) == 'Policy(preset="pure", parameters="float32")'


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"low_ops": "relu", "float32_ops": "nn.relu"}, "low_ops and float32_ops both name 'nn.relu'"),
        ({"low_ops": "relu", "unsupported_ops": "nn.relu"}, "low_ops and unsupported_ops both name 'nn.relu'"),
        ({"low_names": "w*", "float32_names": "w*"}, r"low_names and float32_names both name 'w\*'"),
        ({"low_regions": "a", "float32_regions": "a"}, "low_regions and float32_regions both name 'a'"),
        (
            {"float32_ops": "softmax", "conditional_float32_ops": [("softmax", "axis", (1,))]},
            "float32_ops names 'nn.softmax', and conditional_float32_ops names it where axis is 1",
        ),
        (
            {"mixed_ops": "gemm", "float32_ops": "matmul"},
            "float32_ops names 'matmul', which mixed_ops='gemm' means",
        ),
        ({"mixed_ops": "softmax", "low_ops": "softmax"}, "low_ops names 'nn.softmax', which mixed_ops='softmax'"),
        ({"accumulation": "bf16sr", "dtype": "float16"}, "accumulation='bf16sr' rounds to bfloat16, and dtype is"),
    ],
)
def test_a_contradiction_names_both_sides(fields, message):
    with pytest.raises(PolicyError, match=f"{message}.*contradict each other"):
        Policy(**fields)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Policy(preset="mp2"), "preset='mp2'; expected one of 'mp0', 'mp1', 'mp4', 'default', 'rules', 'pure'"),
        (lambda: Policy(dtype="half"), "dtype='half'; expected one of 'bfloat16', 'float16'"),
        (lambda: Policy(out_dtype="float64"), "out_dtype='float64'; expected one of None, 'float32', 'bfloat16'"),
        (lambda: Policy(mixed_ops="conv"), "mixed_ops='conv'; expected one of 'gemm', 'softmax'"),
        (lambda: Policy(guarded="yes"), "guarded='yes'; expected one of True, False"),
        (lambda: Policy(low_ops="relux"), "low_ops: operator 'relux' is not known; nearest: .*relu"),
        (lambda: Policy(low_ops="call_tir"), "low_ops names 'call_tir', whose precision cannot be chosen: opaque"),
        (lambda: Policy(low_names="/(/"), "'/\\(/' is not a regular expression"),
        (lambda: Policy(low_names=("",)), "low_names has the entry ''; expected a name"),
        (lambda: Policy(conditional_float32_ops=["softmax"]), "expected \\(operator, attribute, values\\)"),
        (lambda: Policy(guarded=1), "guarded=1; expected one of True, False"),
        (lambda: Policy(preset=["mp1"]), "preset=\\['mp1'\\]; expected one of 'mp0'"),
        (lambda: Policy(float32_regions=2), "float32_regions=2; expected a tuple of entries"),
        (lambda: Policy(float32_names=(2,)), "float32_names has the entry 2; expected a name, as text"),
        (lambda: Policy(conditional_float32_ops="exp"), "conditional_float32_ops='exp'; expected a tuple of entries"),
        (lambda: Policy(conditional_float32_ops=["exp"]), "has the entry 'exp'; expected \\(operator, attribute"),
        (lambda: Policy("mp4"), "Policy: got a str without a name; try Policy.parse"),
        (lambda: Policy(presets="mp4"), "Policy: got the option 'presets'; nearest: preset"),
        (lambda: as_policy(3), "policy=3: expected a Policy"),
        (lambda: as_policy(None, precision="bf16"), "Policy: got the option 'precision'; nearest:"),
        (lambda: as_policy("mp1", dtype="float16"), 'are both given; .* try policy=\'dtype="float16", preset="mp1"\''),
        (lambda: as_policy("float16", dtype="bfloat16"), "are both given; .* try policy=''$"),
        (lambda: as_policy(Policy(preset="mp1"), solver="greedy"), 'try policy=Policy\\(preset="mp1", solver="greedy"'),
        (lambda: amp.AutoCast("float16", policy="mp1"), "policy='mp1' and dtype='float16' are both given"),
    ],
)
def test_what_is_not_legal_is_refused_with_what_is(make, message):
    with pytest.raises(PolicyError, match=message):
        make()
