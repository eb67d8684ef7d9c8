"""Operators that onnxruntime's optimizers write, beside onnxruntime."""

# ruff: noqa: E402 (what the imports need may not be installed)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")
pytest.importorskip("onnxruntime", reason="it is compared with; make test installs it")

import autocast
from autocast.errors import UnsupportedError
from tests.frontend.onnx.one_node import assert_computes_the_same, by_onnxruntime, one_node, random

TensorProto = onnx.TensorProto

_MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], "int32")
_IDS = np.array([[1, 2, 3, 0, 5], [4, 3, 2, 1, 0]], "int32")

#: Operator -> its inputs, and its attributes.
_NODES: list[tuple[str, dict[str, np.ndarray | None], dict[str, Any]]] = [
    ("FusedMatMul", {"a": random(2, 4, 3), "b": random(2, 5, 4)}, {"alpha": 0.5, "transA": 1, "transB": 1}),
    ("FusedMatMul", {"a": random(4, 2, 3), "b": random(2, 3, 5)}, {"transBatchA": 1}),
    ("BiasGelu", {"x": random(2, 8), "bias": random(8, seed=1)}, {}),
    ("Gelu", {"x": random(2, 8)}, {}),
    ("FastGelu", {"x": random(2, 8), "bias": random(8, seed=1)}, {}),
    ("QuickGelu", {"x": random(2, 8)}, {"alpha": 1.5}),
    (
        "FusedConv",
        {"x": random(1, 3, 6, 6), "w": random(4, 3, 3, 3), "b": random(4), "z": random(1, 4, 4, 4)},
        {"activation": "Relu"},
    ),
    (
        "FusedGemm",
        {"a": random(2, 3), "b": random(4, 3), "c": random(4)},
        {"transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.2},
    ),
    (
        "SkipLayerNormalization",
        {"x": random(2, 5, 8), "skip": random(2, 5, 8, seed=1), "gamma": random(8), "beta": None, "bias": random(8)},
        {"epsilon": 1e-6},
    ),
    (
        "SkipSimplifiedLayerNormalization",
        {"x": random(2, 5, 8), "skip": random(2, 5, 8, seed=1), "gamma": random(8)},
        {"epsilon": 1e-6},
    ),
    (
        "EmbedLayerNormalization",
        {
            "ids": _IDS,
            "segments": _MASK,
            "words": random(9, 8),
            "positions": random(7, 8, seed=1),
            "kinds": random(2, 8, seed=2),
            "gamma": random(8),
            "beta": random(8, seed=3),
            "mask": _MASK,
        },
        {"results": ("y", ""), "axes": {"y": 3}, "epsilon": 1e-6},
    ),
]


@pytest.mark.parametrize(("operator", "inputs", "options"), _NODES)
def test_an_operator_of_onnxruntime_computes_what_onnxruntime_does(
    operator: str, inputs: dict[str, Any], options: dict[str, Any]
) -> None:
    assert_computes_the_same(operator, inputs, **options)


@pytest.mark.parametrize("options", [{}, {"epsilon": 1e-3}])
def test_norms_that_onnxruntime_writes_in_the_domain_of_onnx_are_imported(options: dict[str, Any]) -> None:
    """SimplifiedLayerNormalization is none of ONNX's, LayerNormalization is none in opset 13."""
    x, gamma, beta = random(2, 5, 8), random(8), random(8, seed=1)
    for operator, operands in (("SimplifiedLayerNormalization", ["g"]), ("LayerNormalization", ["g", "b"])):
        values = [onnx.numpy_helper.from_array(value, name) for name, value in (("g", gamma), ("b", beta))]
        shown = [onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name in "xy"]
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node(operator, ["x", *operands], ["y"], axis=-1, **options)],
            "norm",
            shown[:1],
            shown[1:],
            values[: len(operands)],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
        (expected,) = by_onnxruntime(model, {"x": x})
        np.testing.assert_allclose(autocast.from_onnx(model)(x), expected, rtol=2e-5, atol=2e-5)


def test_what_of_such_an_operator_is_not_imported_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match=r"com\.microsoft\.Inverse: 1 node"):
        autocast.from_onnx(one_node("Inverse", {"x": random(2, 2)}))


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def _grouped(x: np.ndarray, groups: int) -> np.ndarray:
    """(batch, height, width, channels), normed by groups of channels."""
    parts = x.astype("float64").reshape(*x.shape[:3], groups, -1)
    mean, variance = (f(parts, axis=(1, 2, 4), keepdims=True) for f in (np.mean, np.var))
    return ((parts - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape)


_IMAGE, _SKIP, _GAIN, _SHIFT = random(2, 3, 5, 8), random(2, 8, seed=1), random(8, seed=2), random(8, seed=3)
_GELU = torch.nn.functional.gelu

#: Operators of which onnxruntime has kernels for GPUs alone: inputs, attributes and results.
_OF_GPUS: list[tuple[str, dict[str, np.ndarray | None], dict[str, Any], list[np.ndarray]]] = [
    (
        "GroupNorm",
        {"x": _IMAGE, "g": _GAIN, "b": _SHIFT},
        {"groups": 4, "activation": 1},
        [_silu(_grouped(_IMAGE, 4) * _GAIN + _SHIFT)],
    ),
    (
        "SkipGroupNorm",
        {"x": _IMAGE.transpose(0, 3, 1, 2).copy(), "g": _GAIN, "b": _SHIFT, "skip": _SKIP, "bias": _GAIN},
        {"groups": 2, "activation": 0, "channels_last": 0, "results": ("y", "sum")},
        [
            one.transpose(0, 3, 1, 2)
            for total in [_IMAGE + _SKIP[:, None, None] + _GAIN]
            for one in (_grouped(total, 2) * _GAIN + _SHIFT, total)
        ],
    ),
    (
        "BiasSplitGelu",
        {"x": _IMAGE[0], "b": _GAIN},
        {},
        [(_IMAGE[0] + _GAIN)[..., :4] * _GELU(torch.from_numpy((_IMAGE[0] + _GAIN)[..., 4:])).numpy()],
    ),
    ("BiasAdd", {"x": _IMAGE[0], "b": _GAIN, "s": _IMAGE[1]}, {}, [_IMAGE[0] + _GAIN + _IMAGE[1]]),
    (
        "GemmFastGelu",
        {"x": _SKIP, "w": random(8, 3), "b": random(3, seed=5)},
        {},
        [_GELU(torch.from_numpy(_SKIP @ random(8, 3) + random(3, seed=5)), approximate="tanh").numpy()],
    ),
    (
        "NhwcConv",
        {"x": _IMAGE, "w": random(6, 3, 3, 8), "b": random(6, seed=5)},
        {"pads": [1, 1, 1, 1], "strides": [2, 1]},
        [
            nn.functional.conv2d(
                *(torch.from_numpy(one.transpose(0, 3, 1, 2).copy()) for one in (_IMAGE, random(6, 3, 3, 8))),
                *(torch.from_numpy(random(6, seed=5)), (2, 1), 1),
            )
            .permute(0, 2, 3, 1)
            .numpy()
        ],
    ),
]


@pytest.mark.parametrize(("operator", "inputs", "options", "expected"), _OF_GPUS, ids=[row[0] for row in _OF_GPUS])
def test_an_operator_of_onnxruntime_for_gpus_computes_what_it_stands_for(
    operator: str, inputs: dict[str, Any], options: dict[str, Any], expected: list[np.ndarray]
) -> None:
    outputs = autocast.from_onnx(one_node(operator, inputs, **options))(*inputs.values())
    for got, wanted in zip(outputs if isinstance(outputs, tuple) else (outputs,), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("operator", "inputs", "options"),
    [
        ("Trilu", {"x": random(3, 4)}, {"upper": 0}),
        ("GridSample", {"x": random(1, 2, 4, 5), "grid": random(1, 3, 3, 2) / 2}, {"align_corners": 1}),
    ],
)
def test_operators_of_onnx_may_be_in_the_domain_of_onnxruntime(
    operator: str, inputs: dict[str, Any], options: dict[str, Any]
) -> None:
    model = one_node(operator, inputs, **options)
    (expected,) = by_onnxruntime(model, inputs)
    np.testing.assert_allclose(autocast.from_onnx(model)(*inputs.values()), expected, rtol=2e-5, atol=2e-5)
