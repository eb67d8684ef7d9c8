"""MXNet's interface: each argument becomes the field of a policy that it means."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

import autocast
from autocast.compat import mxnet
from autocast.compat.mxnet import amp
from autocast.compat.mxnet.amp import lists as mxnet_lists
from autocast.errors import InputError, PolicyError, PolicyWarning, UnsupportedError

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
    model = amp.convert_hybrid_block(block, X, target_dtype=dtype)
    assert modes(model)["nn.conv2d"] == modes(model)["matmul"] == dtype
    assert modes(model)["nn.batch_norm"] == "float32"
    torch.testing.assert_close(model(X), block(X), rtol=2e-2, atol=2e-2)


def test_operators_of_the_target_dtype_take_the_place_of_the_default_ones(block):
    model = amp.convert_hybrid_block(block, (X,), target_dtype_ops=["Convolution"])
    assert modes(model)["nn.conv2d"] == "float16"
    assert modes(model)["matmul"] == "float32"


def test_an_operator_of_no_default_list_can_be_of_the_target_dtype(block):
    model = amp.convert_hybrid_block(block, X, target_dtype_ops=["Convolution", "FullyConnected", "nn.leakyrelu"])
    assert set(modes(model).values()) >= {"float16"}
    assert modes(model)["nn.leakyrelu"] == modes(model)["matmul"] == "float16"


def test_float32_operators_are_float32(block):
    model = amp.convert_hybrid_block(block, X, fp32_ops=["FullyConnected"])
    assert modes(model)["matmul"] == "float32"
    assert modes(model)["nn.conv2d"] == "float16"


@pytest.mark.parametrize("condition", [("LeakyReLU", "act_type", ["leaky"]), ("nn.leakyrelu", "alpha", [0.5])])
def test_operators_are_float32_where_an_attribute_says_so(block, condition):
    without = amp.convert_hybrid_block(block, X, target_dtype_ops=["Convolution", "FullyConnected"])
    with_condition = amp.convert_hybrid_block(block, X, conditional_fp32_ops=[condition])
    assert modes(with_condition)["nn.leakyrelu"] == "float32"
    assert modes(without)["nn.conv2d"] == modes(with_condition)["nn.conv2d"] == "float16"


def test_an_attribute_of_another_value_changes_nothing(block):
    model = amp.convert_hybrid_block(block, X, conditional_fp32_ops=[("nn.leakyrelu", "alpha", [0.25])])
    level = {decision.operator: decision.level for decision in model.report.decisions}
    assert level["relax.nn.leakyrelu"] == "rule"


@pytest.mark.parametrize(("name", "operator"), [("0", "nn.conv2d"), ("4.weight", "matmul")])
def test_symbols_are_excluded_by_the_name_of_their_layer_or_of_a_parameter(block, name, operator):
    model = amp.convert_hybrid_block(block, X, excluded_sym_names=[name])
    assert {modes(model)[each] for each in ("nn.conv2d", "matmul") if each != operator} == {"float16"}
    assert modes(model)[operator] == "float32"


def test_parameters_are_cast_offline_if_asked(block):
    model = amp.convert_hybrid_block(block, X, cast_params_offline=True)
    assert set(model.report.parameters.stored) == {"0.weight", "4.weight"}
    assert amp.convert_hybrid_block(block, X).report.parameters is None


def test_a_model_is_a_block_whose_types_the_example_must_have(block):
    model = autocast.from_torch(block, (X,))
    assert modes(amp.convert_hybrid_block(model, X))["matmul"] == "float16"
    with pytest.raises(InputError, match=r"data_example has the dtypes \['float64'\], expected \['float32'\]"):
        amp.convert_hybrid_block(model, X.double())


class Sharing(nn.Module):
    """Three layers; two share a weight, and one that keeps float32 has the bias of another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.wide = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight, self.wide.bias = self.first.weight, self.second.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both of the later layers' results."""
        hidden = self.first(x)
        return torch.cat([self.second(hidden), self.wide(hidden)], 1)


@pytest.mark.parametrize("offline", [False, True])
def test_parameters_shared_by_low_and_float32_layers_are_cast_for_the_low_ones_alone(offline):
    torch.manual_seed(0)
    module, x = Sharing().eval(), torch.randn(3, 4)
    # The default rules add a bias in float32; here it is as low as its layer.
    low = ["FullyConnected", "bias_add"]
    model = amp.convert_hybrid_block(
        module, x, target_dtype_ops=low, excluded_sym_names=["wide"], cast_params_offline=offline
    )
    stored = {name: str(value.dtype) for name, value in model.params.items()}
    assert stored["second.bias" if "second.bias" in stored else "wide.bias"] == stored["wide.weight"] == "float32"
    assert stored["first.weight"] == stored["first.bias"] == ("float16" if offline else "float32")
    torch.testing.assert_close(model(x), module(x), rtol=2e-2, atol=2e-2)


def test_examples_are_numpy_arrays_or_tensors(block):
    converted = amp.convert_hybrid_block(block, X.numpy())
    np.testing.assert_allclose(converted(X.numpy()), block(X).detach(), rtol=2e-2, atol=2e-2)


def test_the_listed_operators_are_what_is_low_by_default(block):
    by_default, listed = (
        amp.convert_hybrid_block(block, X, target_dtype_ops=operators) for operators in (None, amp.list_lp16_ops())
    )
    assert modes(by_default) == modes(listed)


def test_every_operator_is_in_one_list():
    names = [
        *amp.list_lp16_ops(),
        *amp.list_fp32_ops(),
        *amp.list_lp16_fp32_ops(),
        *amp.list_widest_type_cast(),
        *(operator for operator, _, _ in amp.list_conditional_fp32_ops()),
    ]
    assert sorted(names) == sorted(mxnet_lists.OPERATORS)


def test_what_is_listed_as_float32_is_what_conversion_keeps_in_float32(block):
    assert "BatchNorm" in amp.list_fp32_ops("bfloat16")
    assert modes(amp.convert_hybrid_block(block, X))["nn.batch_norm"] == "float32"
    assert ("LeakyReLU", "act_type", ["prelu"]) in amp.list_conditional_fp32_ops()


LISTS = [name for name in amp.__all__ if name.startswith("list_")]


@pytest.mark.parametrize("name", LISTS)
def test_lists_are_of_a_low_dtype(name):
    with pytest.raises(PolicyError, match=f"{name}: got target_dtype='int8', expected 'float16' or 'bfloat16'"):
        getattr(amp, name)("int8")


@pytest.mark.parametrize("dtype", [np.float16, np.dtype("float16"), ml_dtypes.bfloat16, torch.bfloat16])
def test_dtypes_are_those_of_any_library(block, dtype):
    for name in LISTS:
        assert getattr(amp, name)(dtype) == getattr(amp, name)("float16")
    low = "float16" if "float16" in (getattr(dtype, "__name__", ""), str(dtype)) else "bfloat16"
    assert modes(amp.convert_hybrid_block(block, X, dtype))["matmul"] == low


@pytest.mark.parametrize(
    ("where", "name", "message"),
    [
        (amp, "convert_block", "nearest: convert_hybrid_block"),
        (amp, "list_loss_output_functions", "losses are autocast.training's"),
        (mxnet, "convert_model", "it is mxnet.amp.convert_model"),
        (mxnet, "gluon", "autocast.training.Trainer trains them"),
        (mxnet, "contrb", "nearest: contrib"),
        (mxnet.contrib, "amb", "nearest: amp"),
    ],
)
def test_a_name_that_is_missing_says_what_is_near(where, name, message):
    with pytest.raises(AttributeError, match=f"{where.__name__} has no '{name}'; .*{message}"):
        getattr(where, name)


def test_mixed_precision_is_where_either_version_has_it():
    assert mxnet.contrib.amp is mxnet.amp


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
        amp.convert_hybrid_block(block, X, **arguments)


def test_a_name_that_excludes_nothing_is_said(block):
    with pytest.warns(PolicyWarning, match="'conv7'"):
        amp.convert_hybrid_block(block, X, excluded_sym_names=["conv7"])


def test_every_name_in_the_tables_is_an_operator():
    for names in (mxnet_lists.OPERATORS, *mxnet_lists.VARIANTS.values()):
        for ours in names.values():
            for name in ours:
                autocast.amp.Policy(float32_ops=name)
