"""Policies as text: what may be left out, and what is said of a text that does not read."""

from __future__ import annotations

import pytest

from autocast.errors import PolicyError
from autocast.policy import Policy


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", Policy()),
        ("mp1", Policy(preset="mp1")),
        ("float16", Policy(dtype="float16")),
        ("mp4, float16,", Policy(preset="mp4", dtype="float16")),
        ("preset=mp1, low_ops=nn.relu", Policy(preset="mp1", low_ops=("relu",))),
        ("low_ops=(nn.relu, exp), guarded=True", Policy(low_ops=("exp", "nn.relu"), guarded=True)),
        ("low_ops = [ nn.relu , 'exp' ]", Policy(low_ops=("exp", "nn.relu"))),
        ("out_dtype=None", Policy()),
        ("float32_names=0.weight", Policy(float32_names="0.weight")),
        ("float32_names=(*.bias, head.?.[a-z]*)", Policy(float32_names=("*.bias", "head.?.[a-z]*"))),
        ("float32_regions=2", Policy(float32_regions="2")),
        (r"float32_names=/layer\.[0-3]{1,2}\.(w|b)/", Policy(float32_names=r"/layer\.[0-3]{1,2}\.(w|b)/")),
        (r'Policy(float32_names=("/layer\\.[0-3]\\..*/",))', Policy(float32_names=(r"/layer\.[0-3]\..*/",))),
        ("low_names=('a, b=c', \"d)\")", Policy(low_names=("a, b=c", "d)"))),
        (
            "conditional_float32_ops=[(softmax, axis, (1, -1))]",
            Policy(conditional_float32_ops=[("nn.softmax", "axis", ("-1", "1"))]),
        ),
    ],
)
def test_names_need_no_quotes_and_single_entries_no_parentheses(text, policy):
    assert Policy.parse(text) == policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mp7", r"'mp7' is neither a preset nor a dtype, expected one of mp0, .*float16$"),
        ("low_ops=exp, nn.relu", r"'nn.relu' is neither .* belongs to low_ops: low_ops=\(exp, nn.relu\)"),
        ("presets=mp1", "has a field 'presets'; nearest: preset"),
        ("mp1, preset=mp4", "says preset twice; expected it once"),
        ("guarded=1", "guarded='1'; expected one of True, False"),
        ("preset=", "got the end, expected a value. A policy is field=value, ...; a list stands in parentheses"),
        ("low_ops=f(1)", r"got '\(', expected a comma or the end"),
        ("low_ops=(exp, relu", r"got the end, expected a comma or '\)'"),
        ("low_ops=exp relu", "got 'relu', expected a comma or the end"),
        ("low_names=[0-9]*.weight", r"got '\*.weight', expected a comma .* quotes around a name may be left out where"),
        ("mp1), f(", r"got '\)', expected a comma"),
        ("'mp1'=1", "got \"'mp1'\", expected a field's name"),
        ("low_names='w", 'got "\'w", expected a value'),
    ],
)
def test_what_does_not_read_is_an_error_that_says_what_would(text, message):
    with pytest.raises(PolicyError, match=message):
        Policy.parse(text)
