"""What policies do not say."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from autocast import amp, from_torch
from autocast.amp import Policy
from autocast.errors import PolicyError
from tests.doors.rows import Row, Rows, rows_of

NET = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU()).eval()
X = torch.ones(2, 3)
M = from_torch(NET, (X,))


ROWS: Rows = {
    ("Policy", PolicyError): {
        "autocast dtype int8": (lambda: amp.autocast(M, dtype="int8"), "dtype='int8'"),
        "autocast dtype float32": (lambda: amp.autocast(M, dtype="float32"), "dtype='float32'"),
        "autocast dtype half": (lambda: amp.autocast(M, dtype="half"), "dtype='half'"),
        "autocast dtype fp16": (lambda: amp.autocast(M, dtype="fp16"), "dtype='fp16'"),
        "autocast dtype torch.float64": (lambda: amp.autocast(M, dtype=torch.float64), "dtype='float64'"),
        "autocast dtype 16": (lambda: amp.autocast(M, dtype=16), "dtype='16'"),
        "autocast dtype int class": (lambda: amp.autocast(M, dtype=int), "dtype='int64'"),
        "autocast dtype a class": (lambda: amp.autocast(M, dtype=nn.Linear), "dtype='object'"),
        "autocast dtype list": (lambda: amp.autocast(M, dtype=["float16"]), r"dtype=.\['float16'\]."),
        "autocast dtype an object": (lambda: amp.autocast(M, dtype=object()), "dtype='<object object at "),
        "autocast dtype True": (lambda: amp.autocast(M, dtype=True), "dtype='True'"),
        "autocast enabled": (lambda: amp.autocast(M, enabled=True), "got the option 'enabled'"),
        "autocast out_dtype": (lambda: amp.autocast(M, out_dtype="int8"), "out_dtype='int8'"),
        "autocast out_dtype other low": (lambda: amp.autocast(M, out_dtype="float16"), "out_dtype='float16'"),
        "autocast out_dtype list": (lambda: amp.autocast(M, out_dtype=["float32"]), r"out_dtype=.\['float32'\]."),
        "autocast objective": (lambda: amp.autocast(M, objective="speed"), "objective='speed'"),
        "autocast objective 3": (lambda: amp.autocast(M, objective=3), "objective=3"),
        "autocast objective list": (lambda: amp.autocast(M, objective=["bytes"]), r"objective=\['bytes'\]"),
        "autocast solver": (lambda: amp.autocast(M, solver="ilp"), "solver='ilp'"),
        "autocast preset": (lambda: amp.autocast(M, preset="O1"), "preset='O1'"),
        "autocast preset list": (lambda: amp.autocast(M, preset=["mp1"]), r"preset=\['mp1'\]"),
        "autocast unknown field": (lambda: amp.autocast(M, loss_scale=3), "got the option 'loss_scale'"),
        "AutoCast pass dtype": (lambda: amp.AutoCast("int8"), "dtype='int8'"),
        "AutoCast pass field": (lambda: amp.AutoCast(speed=3), "got the option 'speed'"),
        "cast_parameters names [3]": (lambda: amp.cast_parameters(amp.autocast(M), [3]), "a pattern: got a int"),
        "cast_parameters names regex": (
            lambda: amp.cast_parameters(amp.autocast(M), "/[/"),
            r"'/\[/' is not a regular expression:",
        ),
        "Policy positional": (lambda: Policy("mp1"), "got a str without a name"),
        "Policy unknown": (lambda: Policy(dtyp="float16"), "got the option 'dtyp'"),
        "Policy dtype": (lambda: Policy(dtype="float8"), "dtype='float8'"),
        "Policy dtype None": (lambda: Policy(dtype=None), "dtype='None'"),
        "Policy preset": (lambda: Policy(preset="mp9"), "preset='mp9'"),
        "Policy preset dict": (lambda: Policy(preset={}), r"preset=\{\}"),
        "Policy low_ops unknown": (lambda: Policy(low_ops="nope"), "low_ops: operator 'nope' is not known"),
        "Policy low_ops 3": (lambda: Policy(low_ops=3), "low_ops=3"),
        "Policy low_ops (3,)": (lambda: Policy(low_ops=(3,)), "low_ops has the entry 3"),
        "Policy low_ops empty text": (lambda: Policy(low_ops=""), "low_ops has the entry ''"),
        "Policy low_ops dict": (lambda: Policy(low_ops={"relu": 1}), r"low_ops=\{'relu': 1\}"),
        "Policy low_ops bytes": (lambda: Policy(low_ops=b"relu"), "low_ops=b'relu'"),
        "Policy low_ops torch function": (
            lambda: Policy(low_ops=(torch.relu,)),
            "low_ops has the entry <built-in method relu",
        ),
        "Policy low_ops undecided": (lambda: Policy(low_ops="astype"), "low_ops names 'astype', whose precision"),
        "Policy low_ops nested": (lambda: Policy(low_ops=(("relu",),)), r"low_ops has the entry \('relu',\)"),
        "Policy float32_ops unknown": (
            lambda: Policy(float32_ops="softmx"),
            "float32_ops: operator 'softmx' is not known",
        ),
        "Policy unsupported_ops unknown": (
            lambda: Policy(unsupported_ops="softmx"),
            "unsupported_ops: operator 'softmx' is not",
        ),
        "Policy widest_ops unknown": (
            lambda: Policy(widest_ops="softmx"),
            "widest_ops: operator 'softmx' is not known",
        ),
        "Policy low_names list": (lambda: Policy(low_names=[["a"]]), r"low_names has the entry \['a'\]"),
        "Policy low_names bad regex": (lambda: Policy(low_names="/[/"), r"'/\[/' is not a regular expression:"),
        "Policy low_names None": (lambda: Policy(low_names=None), "low_names=None"),
        "Policy low_names compiled": (lambda: Policy(low_names=re.compile("a")), r"low_names=re\.compile\('a'\)"),
        "Policy float32_names 3": (lambda: Policy(float32_names=3), "float32_names=3"),
        "Policy float32_regions object": (
            lambda: Policy(float32_regions=object()),
            "float32_regions=<object object at ",
        ),
        "Policy float32_regions catastrophic": (
            lambda: amp.autocast(from_torch(NET, (X,)), policy=Policy(float32_names="/(a|a)*(a*)*b/")),
            r"'/\(a\|a\)\*\(a\*\)\*b/' repeats what is a repetition",
        ),
        "Policy catastrophic 2": (
            lambda: Policy(float32_names="/(\\w+\\s?)*$x/"),
            r"'/\(\\\\w\+\\\\s\?\)\*\$x/' repeats what is a",
        ),
        "Policy conditions not triple": (
            lambda: Policy(conditional_float32_ops=("softmax",)),
            "conditional_float32_ops has the entry",
        ),
        "Policy conditions text": (
            lambda: Policy(conditional_float32_ops="softmax"),
            "conditional_float32_ops='softmax'",
        ),
        "Policy conditions 3": (lambda: Policy(conditional_float32_ops=3), "conditional_float32_ops=3"),
        "Policy conditions attr 3": (
            lambda: Policy(conditional_float32_ops=(("softmax", 3, (1,)),)),
            "conditional_float32_ops has the entry",
        ),
        "Policy conditions op": (
            lambda: Policy(conditional_float32_ops=(("softmx", "axis", (1,)),)),
            "conditional_float32_ops: operator 'softmx' is",
        ),
        "Policy conditions op 3": (
            lambda: Policy(conditional_float32_ops=((3, "axis", (1,)),)),
            "conditional_float32_ops: operator name 3: got",
        ),
        "Policy guarded": (lambda: Policy(guarded="yes"), "guarded='yes'"),
        "Policy guarded 1": (lambda: Policy(guarded=1), "guarded=1"),
        "Policy fp32_params": (lambda: Policy(fp32_params=None), "fp32_params=None"),
        "Policy mixed_ops": (lambda: Policy(mixed_ops="conv"), "mixed_ops='conv'"),
        "Policy mixed_ops 3": (lambda: Policy(mixed_ops=3), "mixed_ops=3"),
        "Policy parameters": (lambda: Policy(parameters="online"), "parameters='online'"),
        "Policy parameters unhashable": (lambda: Policy(parameters=[]), r"parameters=\[\]"),
        "Policy accumulation": (lambda: Policy(accumulation="fp16"), "accumulation='fp16'"),
        "Policy accumulation f16": (
            lambda: Policy(accumulation="bf16sr", dtype="float16"),
            "accumulation='bf16sr' rounds to bfloat16, and",
        ),
        "Policy contradiction": (
            lambda: Policy(low_ops="relu", float32_ops="relu"),
            r"low_ops and float32_ops both name 'nn\.relu'",
        ),
        "Policy contradiction mixed": (
            lambda: Policy(mixed_ops="gemm", low_ops="matmul"),
            "low_ops names 'matmul', which",
        ),
        "Policy contradiction names": (
            lambda: Policy(low_names="a", float32_names="a"),
            "low_names and float32_names both name 'a'",
        ),
        "Policy contradiction condition": (
            lambda: Policy(float32_ops="softmax", conditional_float32_ops=(("softmax", "axis", (1,)),)),
            r"float32_ops names 'nn\.softmax', and",
        ),
        "parse true": (lambda: Policy.parse("guarded=true"), "guarded='true'"),
        "parse surrogate": (lambda: Policy.parse("low_ops=\ud800"), r"low_ops: operator '\\ud800' is not known"),
        "parse numbers": (lambda: Policy.parse("dtype=16"), "dtype='16'"),
        "parse empty list value": (lambda: Policy.parse("dtype=()"), r"dtype='\(\)'"),
    },
    ("", PolicyError): {
        "autocast policy 3": (lambda: amp.autocast(M, policy=3), "policy=3: expected a Policy or a text such as"),
        "autocast policy dict": (
            lambda: amp.autocast(M, policy={"dtype": "float16"}),
            r"policy=\{'dtype': 'float16'\}: expected a",
        ),
        "autocast policy class": (lambda: amp.autocast(M, policy=Policy), "policy=<class"),
        "autocast policy and dtype": (
            lambda: amp.autocast(M, policy="mp1", dtype="float16"),
            "policy='mp1' and dtype='float16' are both",
        ),
        "AutoCast pass policy": (lambda: amp.AutoCast(policy=3), "policy=3: expected a Policy or a text such as"),
        "cast_model policy": (lambda: amp.cast_model(M, 3), "policy=3: expected a Policy or a text such as"),
    },
    ("Policy.parse", PolicyError): {
        "autocast policy O2": (lambda: amp.autocast(M, policy="O2"), "'O2': 'O2' is neither a preset nor a dtype"),
        "parse None": (lambda: Policy.parse(None), "got a NoneType"),
        "parse 3": (lambda: Policy.parse(3), "got a int"),
        "parse bytes": (lambda: Policy.parse(b"mp1"), "got a bytes"),
        "parse word": (lambda: Policy.parse("fast"), "'fast': 'fast' is neither a preset nor a"),
        "parse field": (lambda: Policy.parse("dtyp=float16"), "'dtyp=float16': has a field 'dtyp'"),
        "parse twice": (lambda: Policy.parse("mp1, mp4"), "'mp1, mp4': says preset twice"),
        "parse open": (lambda: Policy.parse("low_ops=(relu"), r"'low_ops=\(relu': got the end"),
        "parse close": (lambda: Policy.parse("low_ops=relu)"), r"'low_ops=relu\)': got '\)'"),
        "parse brackets": (
            lambda: Policy.parse("low_ops=" + "(" * 1000),
            r"'low_ops=\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(",
        ),
        "parse balanced brackets": (
            lambda: Policy.parse("low_ops=" + "(" * 1000 + ")" * 1000),
            r"'low_ops=\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(\(",
        ),
        "parse deep list": (
            lambda: Policy.parse("low_ops=" + "[" * 5000 + "]" * 5000),
            r"'low_ops=\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[\[",
        ),
        "parse escape": (lambda: Policy.parse('low_names="\\x"'), r"'low_names=.\\\\x.': got '.\\\\x.'"),
        "parse escape u": (lambda: Policy.parse('low_names="\\u12"'), r"'low_names=.\\\\u12.': got '.\\\\u12.'"),
        "parse escape N": (
            lambda: Policy.parse('low_names="\\N{nope}"'),
            r"'low_names=.\\\\N\{nope\}.': got '.\\\\N\{nope\}.'",
        ),
        "parse newline in quotes": (lambda: Policy.parse('low_names="a\nb"'), r"'low_names=.a\\nb.': got '.a\\nb.'"),
        "parse nul": (lambda: Policy.parse('low_names="a\x00b"'), r"'low_names=.a\\x00b.': got '.a\\x00b.'"),
        "parse open quote": (lambda: Policy.parse('low_names="a'), "'low_names=.a': got '.a'"),
        "parse two commas": (lambda: Policy.parse("mp1,,mp4"), "'mp1,,mp4': got ','"),
        "parse comma first": (lambda: Policy.parse(",mp1"), "',mp1': got ','"),
        "parse equals": (lambda: Policy.parse("=mp1"), "'=mp1': got '='"),
        "parse two equals": (lambda: Policy.parse("dtype==float16"), "'dtype==float16': got '='"),
        "parse no value": (lambda: Policy.parse("dtype="), "'dtype=': got the end"),
        "parse blank": (lambda: Policy.parse("mp1 mp4"), "'mp1 mp4': got 'mp4'"),
        "parse semicolons": (lambda: Policy.parse("mp1; dtype=float16"), "'mp1"),
        "parse colon": (lambda: Policy.parse("dtype: float16"), "'dtype: float16': 'dtype:' is neither a"),
        "parse list without parens": (
            lambda: Policy.parse("low_ops=relu, exp"),
            "'low_ops=relu, exp': 'exp' is neither a",
        ),
        "parse long": (lambda: Policy.parse("x" * 100000), "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
    },
    ("disable_autocast", PolicyError): {
        "disable_autocast arg": (lambda: amp.disable_autocast(3), "got dtype=3"),
    },
}


@pytest.mark.parametrize("row", rows_of(ROWS), ids=str)
def test_a_bad_call_is_answered_at_the_door(row: Row) -> None:
    row.check()
