"""Detectors' operators beside onnxruntime: boxes that are kept, as many as there are."""

# ruff: noqa: E402 (what the imports need may not be installed)

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")
pytest.importorskip("onnxruntime", reason="it is compared with; make test installs it")

import autocast
from autocast import amp
from autocast.errors import UnsupportedError
from tests.frontend.onnx.test_quantized import by_onnxruntime
from tests.fuzz.generator import parse

TensorProto, helper = onnx.TensorProto, onnx.helper

_BOXES, _SCORES = (
    helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    for name, shape in (("boxes", ["b", "n", 4]), ("scores", ["b", "c", "n"]))
)


def _limits(most: int | None, overlap: float | None, least: float | None) -> tuple[list[Any], list[str]]:
    """The constants that a node of NonMaxSuppression reads, and its inputs after the scores."""
    given = (("most", "int64", most), ("overlap", "float32", overlap), ("least", "float32", least))
    constants = [onnx.numpy_helper.from_array(np.array([v], d), n) for n, d, v in given if v is not None]
    return constants, [name if value is not None else "" for name, _, value in given]


def _suppression(*limits: Any, **attributes: Any) -> Any:
    constants, names = _limits(*limits)
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", *names], ["kept"], **attributes)
    kept = helper.make_tensor_value_info("kept", TensorProto.INT64, ["kept_0", 3])
    graph = helper.make_graph([node], "main", [_BOXES, _SCORES], [kept], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _random(batch: int, classes: int, count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Boxes near each other; scores are multiples of 1/64, so that some are equal."""
    generator = np.random.default_rng(seed)
    corners = generator.random((batch, count, 2), "float32")
    boxes = np.concatenate([corners, corners + generator.random((batch, count, 2), "float32") / 2], 2)
    scores = generator.integers(0, 64, (batch, classes, count)).astype("float32") / 64
    return {"boxes": boxes, "scores": scores}


@pytest.mark.parametrize(
    ("limits", "attributes"),
    [
        ((10, 0.4, 0.25), {}),
        ((10, 0.4, 0.25), {"center_point_box": 1}),
        ((3, None, None), {}),
        ((1000, 1.0, 0.5), {}),
        ((1000, 0.0, -1.0), {}),
        ((0, 0.5, 0.5), {}),
        ((None, None, None), {}),
    ],
)
def test_boxes_that_are_kept_are_onnxruntimes(limits: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    model = _suppression(*limits, **attributes)
    ours = autocast.from_onnx(model)
    for seed, sizes in enumerate(((2, 3, 40), (1, 1, 1), (1, 5, 100), (2, 1, 0))):
        inputs = _random(*sizes, seed=seed)
        (expected,) = by_onnxruntime(model, inputs)
        np.testing.assert_array_equal(ours(*inputs.values()), expected)


def test_a_detector_is_imported_with_its_suppression_and_cast() -> None:
    """A linear head makes boxes and scores of features; what it keeps is looked up among the boxes."""
    generator = np.random.default_rng(0)
    constants, names = _limits(20, 0.5, 0.3)
    weights = {
        "of_boxes": generator.standard_normal((32, 4)).astype("float32") / 8,
        "of_scores": generator.standard_normal((32, 3)).astype("float32") / 4,
        "column": np.array([2]),
        "first": np.array([0]),
    }
    constants += [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    make = helper.make_node
    nodes = [
        make("MatMul", ["x", "of_boxes"], ["raw"]),
        make("Sigmoid", ["raw"], ["found"]),
        make("MatMul", ["x", "of_scores"], ["logits"]),
        make("Sigmoid", ["logits"], ["probabilities"]),
        make("Transpose", ["probabilities"], ["scored"], perm=[0, 2, 1]),
        make("NonMaxSuppression", ["found", "scored", *names], ["kept"]),
        make("Gather", ["kept", "column"], ["numbers"], axis=1),
        make("Squeeze", ["numbers", "column_axis"], ["flat"]),
        make("Squeeze", ["found", "first"], ["image"]),
        make("Gather", ["image", "flat"], ["result"], axis=0),
    ]
    constants.append(onnx.numpy_helper.from_array(np.array([1]), "column_axis"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "n", 32])
    outputs = [
        helper.make_tensor_value_info("result", TensorProto.FLOAT, ["m", 4]),
        helper.make_tensor_value_info("kept", TensorProto.INT64, ["m", 3]),
    ]
    graph = helper.make_graph(nodes, "main", [x], outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    features = generator.standard_normal((1, 60, 32)).astype("float32")

    ours = autocast.from_onnx(model)
    boxes, kept = by_onnxruntime(model, {"x": features})
    got_boxes, got_kept = ours(features)
    np.testing.assert_array_equal(got_kept, kept)
    np.testing.assert_allclose(got_boxes, boxes, rtol=1e-5, atol=1e-6)

    with torch.no_grad():
        results = autocast.to_torch(ours)(torch.from_numpy(features))
    for got, expected in zip(results, (boxes, kept), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)

    mixed = amp.autocast(ours)
    decisions = {decision.operator: decision for decision in mixed.report.decisions}
    assert "float32" in str(decisions["relax.vision.suppress"])
    rounded_boxes, rounded_kept = mixed(features)
    assert rounded_boxes.shape[1:] == (4,) and abs(len(rounded_kept) - len(kept)) <= 3


@pytest.mark.parametrize("centred", [0, 1])
def test_what_is_suppressed_is_written_to_onnx(tmp_path: Path, centred: int) -> None:
    ours = autocast.from_onnx(_suppression(10, 0.4, 0.25, center_point_box=centred))
    path = autocast.to_onnx(ours, tmp_path / "boxes.onnx")
    for seed, sizes in enumerate(((2, 3, 40), (1, 5, 100), (1, 1, 1))):
        inputs = _random(*sizes, seed=seed)
        (written,) = by_onnxruntime(onnx.load(path), inputs)
        np.testing.assert_array_equal(written, ours(*inputs.values()))
        np.testing.assert_array_equal(autocast.from_onnx(path)(*inputs.values()), written)


@pytest.mark.parametrize(
    "expression",
    [
        "R.vision.roi_align(data, rois, (3, 2), 0.5, sample_ratio=2)",
        "R.vision.roi_align(data, rois, (3, 2), 0.5, aligned=True)",
        "R.vision.roi_pool(data, rois, (3, 2), 0.5)",
    ],
)
def test_regions_are_written_to_onnx(tmp_path: Path, expression: str) -> None:
    data = torch.randn(2, 3, 9, 11)
    rois = torch.tensor([[0.0, 1, 2, 9, 12], [1, 0, 0, 20, 16], [1, 3.5, 4.5, 4, 5]])
    model = autocast.from_relax(
        parse(
            "@I.ir_module\nclass Module:\n    @R.function\n"
            '    def main(data: R.Tensor((2, 3, 9, 11), "float32"), rois: R.Tensor((3, 5), "float32")):\n'
            f"        y = {expression}\n        return y\n"
        )
    )
    path = autocast.to_onnx(model, tmp_path / "regions.onnx", opset=21)  # onnxruntime has none of 22 for CPUs
    (written,) = by_onnxruntime(onnx.load(path), {"data": data.numpy(), "rois": rois.numpy()})
    np.testing.assert_allclose(written, model(data, rois), rtol=1e-4, atol=1e-5)


def test_the_largest_sample_of_a_region_is_refused_by_name(tmp_path: Path) -> None:
    model = autocast.from_relax(
        parse(
            "@I.ir_module\nclass Module:\n    @R.function\n"
            '    def main(data: R.Tensor((2, 3, 9, 11), "float32"), rois: R.Tensor((3, 5), "float32")):\n'
            '        y = R.vision.roi_align(data, rois, (3, 2), 0.5, mode="max")\n        return y\n'
        )
    )
    with pytest.raises(UnsupportedError, match=r"roi_align has mode='max'.*expected mode='avg'"):
        autocast.to_onnx(model, tmp_path / "regions.onnx")


@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("options", [{}, {"coordinate_transformation_mode": "output_half_pixel"}])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_regions_are_aligned_as_by_onnxruntime(opset: int, options: dict[str, str], scale: float) -> None:
    given = options if opset >= 16 else {}
    node = helper.make_node(
        "RoiAlign",
        ["x", "r", "k"],
        ["y"],
        output_height=2,
        output_width=3,
        sampling_ratio=2,
        spatial_scale=scale,
        **given,
    )
    generator = np.random.default_rng(0)
    inputs = {
        "x": generator.standard_normal((2, 2, 9, 8)).astype("float32"),
        "r": np.array([[0, 0, 8, 8], [2, 3, 10, 9], [4, 4, 30, 28]], "float32"),
        "k": np.array([0, 1, 1]),
    }
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in inputs.items()
    ]
    graph = helper.make_graph(
        [node], "main", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 2, 2, 3])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    (expected,) = by_onnxruntime(model, inputs)
    np.testing.assert_allclose(autocast.from_onnx(model)(*inputs.values()), expected, rtol=1e-5, atol=1e-5)


def test_the_largest_of_a_region_is_refused_as_onnx_has_another() -> None:
    node = helper.make_node("RoiAlign", ["x", "r", "k"], ["y"], mode="max")
    values = [
        helper.make_tensor_value_info(name, dtype, shape)
        for name, dtype, shape in (
            ("x", TensorProto.FLOAT, [1, 1, 4, 4]),
            ("r", TensorProto.FLOAT, [1, 4]),
            ("k", TensorProto.INT64, [1]),
        )
    ]
    graph = helper.make_graph(
        [node], "main", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 1, 1])]
    )
    with pytest.raises(UnsupportedError, match="RoiAlign with mode='max': 1 node"):
        autocast.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
