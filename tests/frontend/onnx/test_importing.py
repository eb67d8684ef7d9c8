"""ONNX models: those that torch's exporters make, and what is refused."""

# ruff: noqa: E402 (what the imports need may not be installed)

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")
pytest.importorskip("onnxscript", reason="torch's exporter needs it; make test installs it")

import autocast
from autocast import amp, training
from autocast.errors import ImportModelError, InputError, UnsupportedError
from autocast.torch_target.onnx_operators import operators_read_once
from tests.architectures import ARCHITECTURES
from tests.onnx_suite.check import cases, check

TensorProto, helper = onnx.TensorProto, onnx.helper


def exported(module: nn.Module, args: tuple[Any, ...], **options: Any) -> Any:
    """The ONNX model that one of torch's exporters makes of a module."""
    file = io.BytesIO()
    with warnings.catch_warnings(), operators_read_once():
        warnings.simplefilter("ignore")  # of both exporters, about themselves
        torch.onnx.export(module, args, file, **{"dynamo": True, "verbose": False, **options})
    return onnx.load_from_string(file.getvalue())


def graph_of(nodes: list[Any], shape: tuple[int, ...] = (4,), dtype: int = TensorProto.FLOAT) -> Any:
    """A model of one input `x` and one output `y`."""
    ends = [helper.make_tensor_value_info("x", dtype, shape), helper.make_tensor_value_info("y", dtype, shape)]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


#: ViT's file has no kind of node that others lack. torch 2.13's older exporter has no `diff`, of which masks are made.
_EXPORTS = [
    *((name, True) for name in ARCHITECTURES if name != "vit"),
    *((name, False) for name in ("bert", "resnet", "lstm")),
]


@pytest.mark.parametrize(("name", "dynamo"), _EXPORTS)
def test_what_torch_exports_of_an_architecture_computes_what_torch_does(name: str, dynamo: bool) -> None:
    module, args, kwargs, _ = architecture = ARCHITECTURES[name]()
    model = autocast.from_onnx(exported(module, tuple(args), kwargs=dict(kwargs), dynamo=dynamo))
    outputs = model(*args, *kwargs.values())
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for got, expected in zip(outputs, architecture.reference(*args, **kwargs), strict=False):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_inputs_outputs_and_parameters_keep_their_names() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval()
    model = autocast.from_onnx(exported(net, (torch.ones(2, 3),), input_names=["features"], output_names=["scores"]))
    assert model.input_names == ("features",)
    assert model.output_names == ("scores",)
    assert {"0.weight", "0.bias"} == set(model.params)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_keeps_its_low_precision(dtype: torch.dtype) -> None:
    net = nn.Linear(8, 4).eval().to(dtype)
    x = torch.randn(2, 8, dtype=dtype)
    model = autocast.from_onnx(exported(net, (x,)))
    assert model(x).dtype is dtype
    torch.testing.assert_close(model(x), net(x), rtol=2e-2, atol=2e-2)


def test_weights_beside_the_file_are_read(tmp_path: Path) -> None:
    net = nn.Linear(64, 32).eval()
    x = torch.randn(2, 64)
    path = tmp_path / "net.onnx"
    onnx.save(exported(net, (x,)), path, save_as_external_data=True, location="weights.bin", size_threshold=16)
    assert (tmp_path / "weights.bin").exists()
    torch.testing.assert_close(autocast.from_onnx(path)(x), net(x))
    with pytest.raises(ImportModelError, match=r"got a model without its weights, .*Expected its path"):
        autocast.from_onnx(onnx.load(path, load_external_data=False))


def test_dimensions_vary_where_the_file_or_the_caller_says_so() -> None:
    net = nn.Linear(3, 2).eval()
    x, seven = torch.randn(2, 3), torch.randn(7, 3)
    named = exported(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    fixed = exported(net, (x,), input_names=["x"])
    for model in (
        autocast.from_onnx(named),
        autocast.from_onnx(fixed, dynamic={"batch": ("x", 0, 1, 64)}),
    ):
        torch.testing.assert_close(model(seven), net(seven))


def test_a_dimension_that_the_file_leaves_open_may_be_given_a_size() -> None:
    net = nn.Linear(3, 2).eval()
    named = exported(net, (torch.randn(2, 3),), input_names=["x"], dynamic_shapes=({0: torch.export.Dim("batch")},))
    seven = torch.randn(7, 3)
    for dynamic in ({"batch": 7}, {"rows": ("x", 0, 7, 7)}):
        model = autocast.from_onnx(named, dynamic=dynamic)
        torch.testing.assert_close(model(seven), net(seven))
        with pytest.raises(InputError, match="expected"):
            model(torch.randn(2, 3))
    with pytest.raises(ImportModelError, match=r"dynamic\['length'\] is 7, but no input .* names are: batch"):
        autocast.from_onnx(named, dynamic={"length": 7})


def test_an_imported_model_is_autocast_like_any_other() -> None:
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    x = torch.randn(2, 8)
    low = amp.autocast(autocast.from_onnx(exported(net, (x,))))
    assert low.report.inserted
    torch.testing.assert_close(low(x), net(x), rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (None, ImportModelError, "got a NoneType, expected the path of a file, or an onnx.ModelProto"),
        ("nowhere.onnx", ImportModelError, "nowhere.onnx cannot be read"),
        (__file__, ImportModelError, "test_importing.py cannot be read"),
        (onnx.ModelProto(), ImportModelError, "ONNX's checker refuses the model"),
        (graph_of([helper.make_node("ImageDecoder", ["x"], ["y"])], (2, 2)), UnsupportedError, "ImageDecoder: 1 node"),
        (
            graph_of([helper.make_node("ReduceSum", ["x", "x"], ["y"])], dtype=TensorProto.INT64),
            UnsupportedError,
            "ReduceSum: its axes is computed when the model runs",
        ),
        (
            graph_of([helper.make_node("Relu", ["x"], ["y"])], dtype=TensorProto.FLOAT8E4M3FN),
            UnsupportedError,
            "Relu with float8",
        ),
    ],
    ids=["nothing", "no file", "no model", "an empty one", "no such operator", "computed axes", "float8"],
)
def test_what_cannot_be_imported_is_an_error_that_says_why(model: Any, error: type[Exception], message: str) -> None:
    with pytest.raises((error, UnsupportedError), match=message):
        autocast.from_onnx(model)


def test_results_may_have_no_types() -> None:
    """As those of a function of onnxscript's that says none."""
    text = """<ir_version: 10, opset_import: ["" : 20, "ours" : 1]>
        main (float[N, 3] x) => (float[N, 3] y) { y = ours.shifted (x) }
        <domain: "ours", opset_import: ["" : 20]> shifted (x) => (y) { a = Relu (x) y = Sub (a, x) }"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].ClearField("type")
    x = torch.randn(2, 3)
    torch.testing.assert_close(autocast.from_onnx(model)(x), x.relu() - x)


def test_what_a_file_says_of_its_constants_does_not_count() -> None:
    """onnxruntime-genai's builder says that a vector of one number is a scalar."""
    one = helper.make_node("Constant", [], ["one"], value=helper.make_tensor("", TensorProto.FLOAT, [1], [1.0]))
    model = graph_of([one, helper.make_node("Add", ["x", "one"], ["y"])])
    model.graph.value_info.append(helper.make_tensor_value_info("one", TensorProto.FLOAT, []))
    np.testing.assert_array_equal(autocast.from_onnx(model)(np.zeros(4, "float32")), np.ones(4))


#: The last three have bounds that are none.
_WRONG = [
    *(3, {"n": 3}, {"n": ("z", 0)}, {"n": ("x", 5)}, {"a b": ("x", 0)}),
    *({"n": ("x", 0, "1")}, {"n": ("x", 0, 1, 2.5)}, {"n": ("x", 0, 4, 2)}),
]


@pytest.mark.parametrize("dynamic", _WRONG)
def test_dynamic_that_names_what_is_not_there_is_refused(dynamic: Any) -> None:
    model = graph_of([helper.make_node("Relu", ["x"], ["y"])])
    with pytest.raises(ImportModelError, match=r"from_onnx: dynamic.*expected dynamic="):
        autocast.from_onnx(model, dynamic=dynamic)


def test_a_size_of_zero_is_refused_and_a_bound_may_be_left_out() -> None:
    model = graph_of([helper.make_node("Relu", ["x"], ["y"])], shape=("n",))
    with pytest.raises(ImportModelError, match="expected a size of at least 1"):
        autocast.from_onnx(model, dynamic={"n": 0})
    bounded = autocast.from_onnx(model, dynamic={"n": ("x", 0, None, 3)})
    assert bounded(np.ones(2, "float32")).shape == (2,)
    with pytest.raises(
        InputError, match=r'expected n in 0 to 3. Import the model with wider bounds: dynamic=\{"n": \("x"'
    ):
        bounded(np.ones(4, "float32"))


def test_inputs_that_have_a_value_are_none() -> None:
    """In files of IR version 3 all weights are inputs, too."""
    net, x = nn.Linear(8, 4).eval(), torch.randn(2, 8)
    file = exported(net, (x,), dynamo=False, input_names=["x"], keep_initializers_as_inputs=True)
    assert len(file.graph.input) == 3
    model = autocast.from_onnx(file)
    assert model.input_names == ("x",) and len(file.graph.input) == 3
    torch.testing.assert_close(model(x), net(x))
    zero = autocast.from_onnx(file, constants={"bias": np.zeros(4, "float32")})
    torch.testing.assert_close(zero(x), net(x) - net.bias)


#: Every fiftieth of ONNX's node tests; `python -m tests.onnx_suite` runs all.
@pytest.mark.parametrize("form", ["inputs", "constants"])
@pytest.mark.parametrize("place", range(0, 1450, 50))
def test_a_node_test_of_onnx_is_right_or_refused(place: int, form: str) -> None:
    names = list(cases())
    if place >= len(names):
        pytest.skip("this version of ONNX has fewer tests")
    assert check(names[place], form).status in ("right", "refused")


#: Of operators that were mended, with what they say by inputs as constants.
_RIGHT = """
    attention_3d_gqa attention_4d batchnorm_example_training_mode bitcast_float32_to_int32
    bitshift_left_int8_overflow bitshift_right_int32_shift_ge_width bitshift_right_int8_negative_shift celu
    center_crop_pad_crop col2im_5d col2im_pads constant_pad convinteger_with_padding convinteger_without_padding
    convtranspose_output_shape cumprod_1d_reverse_exclusive cumprod_2d_negative_axis det_nd dft_inverse dft_irfft
    dft_rfft dropout_default_mask_ratio dynamicquantizelinear einsum_batch_matmul elu eyelike_with_dtype gather_0
    gather_elements_0 hannwindow isinf_negative l1normalization_axis_last l2normalization_axis_0
    layer_normalization_default_axis matmulinteger maxpool_with_argmax_2d_precomputed_strides
    maxunpool_export_with_output_shape mod_mixed_sign_float32 nllloss_NC onehot_negative_indices
    pow_types_float32_int64 pow_types_int32_int32 qlinearconv qlinearmatmul_3D_int8_float16
    quantizelinear_blocked_asymmetric resize_downsample_scales_cubic resize_downsample_scales_linear_antialias
    resize_downsample_sizes_nearest_not_larger resize_tf_crop_and_resize_axes_3_2 resize_upsample_scales_nearest
    reversesequence_time rotary_embedding sce_mean shape spacetodepth_crd_mode_example
    split_zero_size_splits_opset18 stft_with_window swiglu tensorscatter_circular tile upsample_nearest
"""


@pytest.mark.parametrize("name", [f"test_{name}" for name in _RIGHT.split()])
def test_a_node_of_an_operator_that_was_mended_is_right(name: str) -> None:
    if name not in cases():
        pytest.skip("this version of ONNX has no such test")
    verdict = check(name, "constants")
    assert verdict.status == "right", verdict.detail


def test_outputs_are_of_the_kind_of_the_inputs() -> None:
    model = autocast.from_onnx(graph_of([helper.make_node("Relu", ["x"], ["y"])]))
    np.testing.assert_array_equal(model(np.array([-1, 0, 1, 2], "float32")), [0, 0, 1, 2])


#: Of sizes that vary, and all that a node says by inputs as constants.
_VARYING = """
    attention_3d_gqa attention_4d_attn_mask_3d_causal averagepool_2d_same_lower bitshift_left_int16 center_crop_pad_crop
    clip_default_int8_inbounds conv_with_autopad_same convtranspose_1d cumsum_1d_reverse_exclusive edge_pad
    einsum_batch_diagonal einsum_batch_matmul einsum_transpose hardmax_axis_1 lppool_2d_same_upper
    lstm_with_initial_bias maxpool_2d_same_upper mod_mixed_sign_int8 pow_types_float32_int64 reflect_pad
    resize_downsample_scales_cubic_A_n0p5_exclude_outside resize_downsample_sizes_nearest rotary_embedding
    scatternd_add sce_mean slice_neg_steps split_variable_parts_2d_opset18 split_zero_size_splits_opset18
    tensorscatter_circular wrap_pad
"""


@pytest.mark.parametrize("name", [f"test_{name}" for name in _VARYING.split()])
def test_a_node_on_sizes_that_vary_is_right(name: str) -> None:
    if name not in cases():
        pytest.skip("this version of ONNX has no such test")
    verdict = check(name, "varying")
    assert verdict.status == "right", verdict.detail


def test_statistics_of_a_norm_are_not_learned() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4)).eval()
    for tensor in (*module[2].parameters(), *module[2].buffers()):
        if tensor.is_floating_point():  # an exporter joins what is equal
            nn.init.uniform_(tensor, 0.5, 2)
    x = torch.randn(5, 3, 4)
    file = exported(module, (x,), dynamo=False, training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False)
    model = autocast.from_onnx(file)
    assert {name.rpartition(".")[2] for name in model.frozen} == {"running_mean", "running_var"}
    torch.testing.assert_close(autocast.to_torch(model)(x), module(x), rtol=1e-5, atol=1e-5)
    before = {name: array.numpy().copy() for name, array in model.params.items()}
    trainer = training.Trainer(model, training.CrossEntropy(), training.SGD(), learning_rate=0.5)
    trainer.step((x, torch.randint(4, (5,))))
    after = trainer.trained().params
    assert {name for name, value in before.items() if (after[name].numpy() != value).any()} == set(
        before
    ) - model.frozen


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        (
            "(float[2, 3] x) => (float[2, 3] y) <float low = {0}, float high = {6}> { y = Clip (x, low, high) }",
            "maximum",
        ),
        (
            '(float[2, 5] x) => (float[2, 7] y) <int64[4] p = {0, 1, 0, 1}> { y = Pad <mode = "reflect"> (x, p) }',
            "take",
        ),
        ("(float[2, 5] x) => (float[2, 7] y) <int64[4] p = {0, 1, 0, 1}> { y = Pad (x, p) }", "nn.pad"),
        ('(float[2, 3] x) => (float[2, 2] y) { y = Einsum <equation = "ij,kj->ik"> (x, x) }', "matmul"),
    ],
    ids=["Clip", "reflect", "Pad", "Einsum"],
)
def test_operators_have_rules_and_no_opaque_calls(text: str, operator: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> main {text}')
    script = autocast.from_onnx(model).mod.script()
    assert "call_tir" not in script
    assert f"R.{operator}(" in script
