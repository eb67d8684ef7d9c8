"""MXNet's interface: each argument becomes the field of a policy that it means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from tvm.script import ir as I
from tvm.script import relax as R

import autocast
from autocast.compat import mxnet, mxnet_lists
from autocast.errors import ImportModelError, InputError, PolicyError, PolicyWarning, UnsupportedError


@I.ir_module
class Symbol:
    @R.function
    def main(data: R.Tensor((2, 4)), weight: R.Tensor((3, 4)), bias: R.Tensor((3,)), mean: R.Tensor((2, 3))):
        with R.dataflow():
            turned = R.permute_dims(weight)
            fc = R.add(R.matmul(data, turned), bias)
            centered = R.subtract(fc, mean)
            out = R.nn.softmax(centered)
            R.output(out)
        return out


DTYPES = {"weight": "float32", "bias": "float32", "mean": "float32"}
X = torch.randn(2, 1, 6, 6)


@pytest.fixture
def block() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.LeakyReLU(0.5), nn.Flatten(), nn.Linear(64, 5)
    ).eval()


def modes(converted: object) -> dict[str, str]:
    return {decision.operator.removeprefix("relax."): decision.mode for decision in converted.report.decisions}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_by_default_products_are_low_and_the_results_are_near(block, dtype):
    model = mxnet.convert_hybrid_block(block, X, target_dtype=dtype)
    assert modes(model)["nn.conv2d"] == modes(model)["matmul"] == dtype
    assert modes(model)["nn.batch_norm"] == "float32"
    torch.testing.assert_close(model(X), block(X), rtol=2e-2, atol=2e-2)


def test_operators_of_the_target_dtype_take_the_place_of_the_default_ones(block):
    model = mxnet.convert_hybrid_block(block, (X,), target_dtype_ops=["Convolution"])
    assert modes(model)["nn.conv2d"] == "float16"
    assert modes(model)["matmul"] == "float32"


def test_an_operator_of_no_default_list_can_be_of_the_target_dtype(block):
    model = mxnet.convert_hybrid_block(block, X, target_dtype_ops=["Convolution", "FullyConnected", "nn.leakyrelu"])
    assert set(modes(model).values()) >= {"float16"}
    assert modes(model)["nn.leakyrelu"] == modes(model)["matmul"] == "float16"


def test_float32_operators_are_float32(block):
    model = mxnet.convert_hybrid_block(block, X, fp32_ops=["FullyConnected"])
    assert modes(model)["matmul"] == "float32"
    assert modes(model)["nn.conv2d"] == "float16"


@pytest.mark.parametrize("condition", [("LeakyReLU", "act_type", ["leaky"]), ("nn.leakyrelu", "alpha", [0.5])])
def test_operators_are_float32_where_an_attribute_says_so(block, condition):
    without = mxnet.convert_hybrid_block(block, X, target_dtype_ops=["Convolution", "FullyConnected"])
    with_condition = mxnet.convert_hybrid_block(block, X, conditional_fp32_ops=[condition])
    assert modes(with_condition)["nn.leakyrelu"] == "float32"
    assert modes(without)["nn.conv2d"] == modes(with_condition)["nn.conv2d"] == "float16"


def test_an_attribute_of_another_value_changes_nothing(block):
    model = mxnet.convert_hybrid_block(block, X, conditional_fp32_ops=[("nn.leakyrelu", "alpha", [0.25])])
    level = {decision.operator: decision.level for decision in model.report.decisions}
    assert level["relax.nn.leakyrelu"] == "rule"


@pytest.mark.parametrize(("name", "operator"), [("0", "nn.conv2d"), ("4.weight", "matmul")])
def test_symbols_are_excluded_by_the_name_of_their_layer_or_of_a_parameter(block, name, operator):
    model = mxnet.convert_hybrid_block(block, X, excluded_sym_names=[name])
    assert {modes(model)[each] for each in ("nn.conv2d", "matmul") if each != operator} == {"float16"}
    assert modes(model)[operator] == "float32"


def test_parameters_are_cast_offline_if_asked(block):
    model = mxnet.convert_hybrid_block(block, X, cast_params_offline=True)
    assert set(model.report.parameters.stored) == {"0.weight", "4.weight"}
    assert mxnet.convert_hybrid_block(block, X).report.parameters is None


def test_a_model_is_a_block_whose_types_the_example_must_have(block):
    model = autocast.from_torch(block, (X,))
    assert modes(mxnet.convert_hybrid_block(model, X))["matmul"] == "float16"
    with pytest.raises(InputError, match=r"data_example has the dtypes \['float64'\], expected \['float32'\]"):
        mxnet.convert_hybrid_block(model, X.double())


def test_a_symbol_needs_the_types_of_inputs_and_parameters_and_no_others():
    converted = mxnet.convert_symbol(Symbol, {"data": "float32"}, DTYPES)
    assert modes(converted) == {
        "permute_dims": "float16",
        "matmul": "float16",
        "bias_add": "float32",
        "subtract": "float32",
        "nn.softmax": "float32",
    }
    with pytest.raises(ImportModelError, match="no dtype is given for weight, bias, mean"):
        mxnet.convert_symbol(Symbol, {"data": "float32"}, {})


def test_a_symbol_takes_parameters_in_the_target_dtype_where_nothing_else_is_read():
    converted = mxnet.convert_symbol(Symbol, {"data": "float32"}, DTYPES, cast_params_offline=True)
    assert [str(param.ty.dtype) for param in converted["main"].params] == ["float32", "float16", "float32", "float32"]


@pytest.mark.parametrize(("a", "b", "casts"), [("float16", "float16", 0), ("float32", "float16", 1)])
def test_operators_of_several_inputs_cast_only_what_needs_it(a, b, casts):
    @I.ir_module
    class Sum:
        @R.function
        def main(a: R.Tensor((4,)), b: R.Tensor((4,))):
            with R.dataflow():
                c = R.add(a, b)
                R.output(c)
            return c

    converted = mxnet.convert_symbol(Sum, {"a": a, "b": b}, {})
    assert converted.script().count("R.astype(") == casts
    assert str(converted["main"].ret_ty.dtype) == a


def test_a_model_comes_back_as_symbol_arguments_and_statistics():
    rng = np.random.default_rng(0)
    args = {"weight": rng.normal(size=(3, 4)).astype("float32"), "bias": np.zeros(3, "float32")}
    aux = {"mean": np.ones((2, 3), "float32")}
    sym, arg_params, aux_params = mxnet.convert_model(
        Symbol, args, aux, {"data": "float32"}, target_dtype="bfloat16", cast_params_offline=True
    )
    assert {name: str(value.dtype) for name, value in arg_params.items()} == {"weight": "bfloat16", "bias": "float32"}
    assert list(aux_params) == ["mean"]
    x = rng.normal(size=(2, 4)).astype("float32")
    logits = x @ args["weight"].T - 1
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    found = autocast.from_relax(sym, {**arg_params, **aux_params})(x)
    np.testing.assert_allclose(found, expected, rtol=2e-2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"device": "gpu(0)"}, UnsupportedError, r"device: got 'gpu\(0\)', expected the CPU"),
        ({"target_dtype": "int8"}, PolicyError, "dtype='int8'"),
        ({"fp32_ops": ["Convolutoin"]}, PolicyError, "Convolutoin"),
        ({"target_dtype_ops": ["Pad"], "fp32_ops": ["Pad"]}, PolicyError, "both name 'nn.pad'"),
        ({"target_dtype_ops": ["Convolution"], "fp32_ops": ["Convolution"]}, PolicyError, "both name 'nn.conv2d'"),
        ({"conditional_fp32_ops": [("Activation", "act_type", ["swish"])]}, PolicyError, "expected some of relu"),
    ],
)
def test_what_is_not_known_or_contradicts_itself_is_refused(block, arguments, error, message):
    with pytest.raises(error, match=message):
        mxnet.convert_hybrid_block(block, X, **arguments)


def test_a_name_that_excludes_nothing_is_said(block):
    with pytest.warns(PolicyWarning, match="'conv7'"):
        mxnet.convert_hybrid_block(block, X, excluded_sym_names=["conv7"])


def test_every_name_in_the_tables_is_an_operator():
    for names in (mxnet_lists.OPERATORS, *mxnet_lists.VARIANTS.values()):
        for ours in names.values():
            for name in ours:
                autocast.amp.Policy(float32_ops=name)
