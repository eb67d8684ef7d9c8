"""What `amp.autocast`, casting rules and blocks of them do not take."""

from __future__ import annotations

import warnings

import pytest
import torch
import tvm
from torch import nn

import autocast
import type_hints
from autocast import amp, from_torch
from autocast.amp import CustomTypeHint
from autocast.errors import AutocastError, CastingRuleError, IllFormedModuleError, InputError, UnknownOperatorError
from tests.doors.rows import Row, Rows, rows_of
from type_hints import PrimType, follow, full, low

NET = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU()).eval()
X = torch.ones(2, 3)
M = from_torch(NET, (X,))


def g():
    yield 1


def a_with(rules):
    with CustomTypeHint(rules):
        return amp.autocast(from_torch(NET, (X,)))


class Att(nn.Module):
    def forward(self, q):
        return nn.functional.scaled_dot_product_attention(q, q, q)


def att_with(rules):
    m = from_torch(Att(), (torch.ones(1, 2, 4, 8),))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with CustomTypeHint(rules):
            return amp.autocast(m)


ROWS: Rows = {
    ("autocast", AutocastError): {
        "autocast None": (lambda: amp.autocast(None), "got a NoneType"),
        "autocast torch module": (lambda: amp.autocast(NET), "got a Sequential"),
        "autocast text": (lambda: amp.autocast("x"), "got a str"),
        "autocast an executable": (lambda: amp.autocast(autocast.compile(M)), "got a Executable"),
        "autocast a function": (lambda: amp.autocast(M.main), "got a Function"),
        "autocast dtype in place of args": (
            lambda: amp.autocast(M, "float16"),
            "the second argument is the example inputs,",
        ),
        "autocast torch dtype in place": (
            lambda: amp.autocast(M, torch.float16),
            "the second argument is the example inputs,",
        ),
        "cast_model None": (lambda: amp.cast_model(None), "got a NoneType"),
        "cast_model module": (lambda: amp.cast_model(NET), "got a Sequential"),
    },
    ("AutoCast", IllFormedModuleError): {
        "autocast empty module": (lambda: amp.autocast(tvm.IRModule()), "the module has no Relax function"),
    },
    ("autocast", InputError): {
        "autocast args number": (lambda: amp.autocast(M, 3), "the example inputs are not those of the"),
        "autocast args tensor": (lambda: amp.autocast(M, X), "the example inputs are not those of the"),
        "autocast args wrong shape": (
            lambda: amp.autocast(M, [torch.ones(5, 3)]),
            "the example inputs are not those of the",
        ),
        "autocast args wrong dtype": (lambda: amp.autocast(M, [X.double()]), "the example inputs are not those of the"),
        "autocast args text": (lambda: amp.autocast(M, ["x"]), "the example inputs are not those of the"),
        "autocast args None inside": (lambda: amp.autocast(M, [None]), "the example inputs are not those of the"),
        "autocast args by wrong name": (lambda: amp.autocast(M, {"y": X}), "the example inputs are not those of the"),
        "autocast args sparse": (lambda: amp.autocast(M, [X.to_sparse()]), "the example inputs are not those of the"),
        "autocast args complex": (
            lambda: amp.autocast(M, [X.to(torch.complex64)]),
            "the example inputs are not those of the",
        ),
    },
    ("AutoCast", CastingRuleError): {
        "autocast twice with other dtype": (
            lambda: amp.autocast(amp.autocast(M), dtype="float16"),
            r"the module was autocast with dtype='bfloat16'",
        ),
        "CustomTypeHint low(1) for layer_norm": (
            lambda: a_with({"nn.layer_norm": low(1)}),
            r"TVM refuses the dtypes \(bfloat16, float32,",
        ),
        "CustomTypeHint low(1) for add": (
            lambda: a_with({"add": low(1)}),
            r"TVM refuses the dtypes \(bfloat16, float32\)",
        ),
        "rule returns None": (
            lambda: a_with({"nn.gelu": lambda *a: None}),
            "the casting rule <lambda> failed on %gv =",
        ),
        "rule returns text": (
            lambda: a_with({"nn.gelu": lambda *a: "float16"}),
            "the casting rule <lambda> failed on %gv =",
        ),
        "rule returns number": (lambda: a_with({"nn.gelu": lambda *a: 3}), "the casting rule <lambda> failed on %gv ="),
        "rule returns []": (lambda: a_with({"nn.gelu": lambda *a: []}), "the casting rule <lambda> answered 0 hints"),
        "rule returns texts": (
            lambda: a_with({"nn.gelu": lambda *a: ["float16"]}),
            "the casting rule <lambda> answered 'float16'",
        ),
        "rule returns [None]": (
            lambda: a_with({"nn.gelu": lambda *a: [None]}),
            "the casting rule <lambda> answered None for",
        ),
        "rule returns int8": (
            lambda: a_with({"nn.gelu": lambda *a: [PrimType("int8")]}),
            "the casting rule <lambda> answered",
        ),
        "rule returns float64": (
            lambda: a_with({"nn.gelu": lambda *a: [PrimType("float64")]}),
            "the casting rule <lambda> answered",
        ),
        "rule returns other low": (
            lambda: a_with({"nn.gelu": lambda *a: [PrimType("float16")]}),
            "the casting rule <lambda> answered",
        ),
        "rule returns too many": (
            lambda: a_with({"nn.gelu": lambda *a: [PrimType("float32")] * 5}),
            "the casting rule <lambda> answered 5 hints",
        ),
        "rule returns nested": (
            lambda: a_with({"nn.gelu": lambda *a: [[PrimType("float32")]]}),
            "the casting rule <lambda> answered",
        ),
        "rule returns dict": (
            lambda: a_with({"nn.gelu": lambda *a: {0: PrimType("float32")}}),
            "the casting rule <lambda> failed on %gv =",
        ),
        "rule returns set": (
            lambda: a_with({"nn.gelu": lambda *a: {PrimType("float32")}}),
            "the casting rule <lambda> failed on %gv =",
        ),
        "rule returns torch dtype": (
            lambda: a_with({"nn.gelu": lambda *a: [torch.float16]}),
            "the casting rule <lambda> answered",
        ),
        "rule raises": (lambda: a_with({"nn.gelu": lambda *a: 1 / 0}), "the casting rule <lambda> failed on %gv ="),
        "rule contradicts": (
            lambda: a_with(
                {"nn.gelu": lambda args, r, d: [PrimType("float32" if args[0].checked_type.dtype.dtype == d else d)]}
            ),
            "the casting rule <lambda> contradicts itself",
        ),
    },
    ("cast_parameters", AutocastError): {
        "cast_parameters None": (lambda: amp.cast_parameters(None), "got None"),
        "cast_parameters uncast": (lambda: amp.cast_parameters(M), r"got Model\(input: R\.Tensor\(\(2, 3\),"),
        "cast_parameters IRModule": (
            lambda: amp.cast_parameters(amp.AutoCast()(M.mod)),
            r"got # from tvm\.script import ir as I # from",
        ),
        "cast_parameters autocast IRModule": (
            lambda: amp.cast_parameters(amp.autocast(M.mod)),
            r"got # from tvm\.script import ir as I # from",
        ),
        "cast_parameters names 3": (lambda: amp.cast_parameters(amp.autocast(M), 3), "got a int"),
    },
    ("CustomTypeHint", CastingRuleError): {
        "CustomTypeHint None": (lambda: CustomTypeHint(None), "got NoneType"),
        "CustomTypeHint list": (lambda: CustomTypeHint([low(1)]), "got list"),
        "CustomTypeHint text value": (lambda: CustomTypeHint({"gelu": "float16"}), "the rule of 'gelu' is 'float16'"),
        "CustomTypeHint None value": (lambda: CustomTypeHint({"gelu": None}), "the rule of 'gelu' is None"),
        "CustomTypeHint low uncalled": (
            lambda: CustomTypeHint({"gelu": low}),
            "the rule of 'gelu' is <function low at ",
        ),
        "CustomTypeHint class": (lambda: CustomTypeHint({"gelu": nn.GELU}), "the rule of 'gelu' is <class"),
        "CustomTypeHint lambda no args": (
            lambda: CustomTypeHint({"gelu": lambda: None}),
            "the rule of 'gelu' is <function",
        ),
        "CustomTypeHint low(2) for gelu": (
            lambda: CustomTypeHint({"gelu": low(2)}),
            r"low\(2\) names the arguments 0, 1 \(counted from",
        ),
        "CustomTypeHint two names": (
            lambda: CustomTypeHint({"gelu": low(1), "relax.nn.gelu": full(1)}),
            r"relax\.nn\.gelu is named twice, the second time",
        ),
        "CustomTypeHint decorates 3": (lambda: CustomTypeHint({})(3), "got a int to decorate"),
        "CustomTypeHint decorates None": (lambda: CustomTypeHint({})(None), "got a NoneType to decorate"),
        "rule takes 1": (lambda: a_with({"nn.gelu": lambda args: []}), r"the rule of 'nn\.gelu' is <function"),
    },
    ("operator", UnknownOperatorError): {
        "CustomTypeHint unknown": (lambda: CustomTypeHint({"softmx": low(1)}), "'softmx' is not known"),
        "CustomTypeHint function key": (
            lambda: CustomTypeHint({torch.relu: low(1)}),
            "name <built-in method relu of type object at ",
        ),
        "CustomTypeHint softmax in attention": (
            lambda: CustomTypeHint({"torch.softmax": low(1)}),
            r"'torch\.softmax' is not known",
        ),
        "CustomTypeHint empty ok": (lambda: CustomTypeHint({"": low(1)}), "'' is not known"),
        "register rule unknown op": (lambda: type_hints.register_op_cast_rule("nope", low(1)), "'nope' is not known"),
    },
    ("operator name 3", UnknownOperatorError): {
        "CustomTypeHint int key": (lambda: CustomTypeHint({3: low(1)}), "got int"),
        "register rule int": (lambda: type_hints.register_op_cast_rule(3, low(1)), "got int"),
    },
    ("operator name None", UnknownOperatorError): {
        "CustomTypeHint None key": (lambda: CustomTypeHint({None: low(1)}), "got NoneType"),
    },
    ("CustomTypeHint cannot decorate the generator g", CastingRuleError): {
        "CustomTypeHint generator": (lambda: CustomTypeHint({})(g), "its body runs after the call returns"),
    },
    ("", CastingRuleError): {
        "PrimType 3": (lambda: PrimType(3), r"PrimType\(3\): got int"),
        "PrimType torch": (lambda: PrimType(torch.float16), r"PrimType\(torch\.float16\): got dtype"),
        "PrimType list": (lambda: PrimType(["float16"]), r"PrimType\(\['float16'\]\): got list"),
        "low 0": (lambda: low(0), r"low\(\(-1,\)\): expected how many leading"),
        "low -1": (lambda: low(-1), r"low\(\(-1,\)\): expected how many leading"),
        "low text": (lambda: low("x"), r"low\('x'\): expected how many leading arguments"),
        "low True": (lambda: low(True), r"low\(\(-1,\)\): expected how many leading"),
        "low 1.5": (lambda: low(1.5), r"low\(1\.5\): expected how many leading arguments"),
        "low None": (lambda: low(None), r"low\(None\): expected how many leading"),
        "low (-1,)": (lambda: low((-1,)), r"low\(\(-1,\)\): expected how many leading"),
        "low keep x": (lambda: low(1, keep="x"), r"low\('x'\): expected how many leading arguments"),
        "low result": (lambda: low(1, result="any"), r"low\(1, result='any'\): expected None, or"),
        "follow leader": (lambda: follow(2, leader=5), r"follow\(2, leader=5\): expected the leader to"),
        "follow leader text": (lambda: follow(2, leader="0"), r"follow\(2, leader='0'\): expected the leader to"),
        "full unhashable": (lambda: full([[1]]), r"full\(\[\[1\]\]\): expected how many leading"),
        "register rule text": (
            lambda: type_hints.register_op_cast_rule("relax.nn.gelu", "x", override=True),
            r"register_op_cast_rule\('relax\.nn\.gelu'\): got",
        ),
        "register rule taken": (
            lambda: type_hints.register_op_cast_rule("relax.nn.gelu", low(1)),
            r"register_op_cast_rule\('relax\.nn\.gelu'\):",
        ),
    },
    ("TupleType", CastingRuleError): {
        "TupleType 3": (lambda: type_hints.TupleType(3), "got a int"),
        "TupleType [3]": (lambda: type_hints.TupleType([3]), "field 0 is 3"),
    },
}


@pytest.mark.parametrize("row", rows_of(ROWS), ids=str)
def test_a_bad_call_is_answered_at_the_door(row: Row) -> None:
    row.check()
