"""Quantized ONNX files, and onnxruntime's own operators, beside onnxruntime."""

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
pytest.importorskip("onnxruntime", reason="it is compared with; make test installs it")
pytest.importorskip("onnxscript", reason="torch's exporter needs it; make test installs it")

import autocast
from tests.frontend.onnx.one_node import assert_computes_the_same, by_onnxruntime, random

TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper


class Net(nn.Module):
    """Convolutions, one by groups, a sum, activations, joined channels, a mean and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        self.last = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        y = torch.sigmoid(self.second(x) + x)
        z = torch.cat([y * x, nn.functional.leaky_relu(y)], 1)
        return self.last(z.mean((2, 3)))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter, about itself
        file = io.BytesIO()
        torch.onnx.export(Net().eval(), (torch.randn(2, 3, 12, 12),), file, input_names=["x"], dynamo=False)
    path.write_bytes(file.getvalue())
    return path


# Of weights of 8 bits onnxruntime's sums saturate in 16 bits on a processor without VNNI; those of 7 bits do nowhere.
@pytest.mark.parametrize("kind", ["QDQ", "QOperator", "dynamic"])
def test_what_onnxruntime_quantizes_computes_the_same_integers(kind: str, exported: Path) -> None:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )

    class Batches(CalibrationDataReader):
        def __init__(self) -> None:
            self.rest = iter([{"x": random(2, 3, 12, 12, seed=seed)} for seed in range(3)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rest, None)

    path = exported.parent / f"{kind}.onnx"
    if kind == "dynamic":
        quantize_dynamic(exported, path, reduce_range=True)
    else:
        form = QuantFormat[kind]
        quantize_static(
            *(exported, path, Batches(), form), per_channel=True, activation_type=QuantType.QUInt8, reduce_range=True
        )
    x = random(2, 3, 12, 12, seed=7)
    (expected,) = by_onnxruntime(onnx.load(path), {"x": x})
    tolerance = 0 if kind == "QOperator" else 1e-5  # in float32 a sum near the middle of two steps may take either
    np.testing.assert_allclose(autocast.from_onnx(path)(x), expected, rtol=tolerance, atol=tolerance)


#: Weights of 7 bits, whose sums onnxruntime computes rightly on every processor.
_WEIGHTS = random(7, 4, dtype="int8") // 2
_SCALE, _ZERO = np.array(0.02, "float32"), np.array(120, "uint8")
_MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], "int32")
_IDS = np.array([[1, 2, 3, 0, 5], [4, 3, 2, 1, 0]], "int32")

#: Operator -> its inputs, and its attributes.
_NODES: list[tuple[str, dict[str, np.ndarray | None], dict[str, Any]]] = [
    (
        "MatMulNBits",
        {"a": random(3, 40), "b": random(6, 3, 8, dtype="uint8"), "s": abs(random(18)), "z": random(12, dtype="uint8")},
        {"K": 40, "N": 6, "bits": 4, "block_size": 16},
    ),
    (
        "QEmbedLayerNormalization",
        {
            **{"ids": _IDS, "segments": _MASK},
            **{f"q{at}": random(*sizes, dtype="uint8", seed=at) for at, sizes in enumerate([(9, 8), (7, 8), (2, 8)])},
            **{"gamma": random(8, dtype="uint8"), "beta": random(8, dtype="uint8", seed=1), "mask": _MASK},
            **{f"s{at}": np.array(0.01 * (at + 1), "float32") for at in range(5)},
            **{f"z{at}": np.array(120 + at, "uint8") for at in range(5)},
        },
        {"results": ("y", "count"), "axes": {"y": 3, "count": 1}, "dtypes": {"count": "int32"}, "epsilon": 1e-6},
    ),
    (
        "QLinearWhere",
        {
            **{"if": _MASK == 1, "x": random(2, 5, dtype="uint8"), "xs": _SCALE, "xz": _ZERO},
            **{"y": random(5, dtype="uint8"), "ys": np.array(0.04, "float32"), "yz": _ZERO, "zs": _SCALE, "zz": _ZERO},
        },
        {"results": ("z",), "dtypes": {"z": "uint8"}},
    ),
    *(
        (
            "GatherBlockQuantized",
            {
                **{"d": random(9, 40 * bits // 8, dtype="uint8"), "i": np.array([[1, 8, -1], [3, 3, 0]])},
                **{"s": random(9, 3), "z": random(9, -(-3 * bits // 8), dtype="uint8") if has_zeros else None},
            },
            {"bits": bits, "block_size": 16, "axes": {"y": 3}},
        )
        for bits, has_zeros in ((4, True), (8, False))
    ),
    (
        "DynamicQuantizeMatMul",
        {"a": random(3, 7), "b": _WEIGHTS, "s": abs(random(4)), "z": None, "bias": random(4)},
        {},
    ),
    (
        "MatMulIntegerToFloat",
        {
            "a": random(3, 7, dtype="uint8"),
            "b": _WEIGHTS,
            "as": _SCALE,
            "bs": abs(random(4)),
            "az": _ZERO,
        },
        {},
    ),
]


@pytest.mark.parametrize(("operator", "inputs", "options"), _NODES)
def test_an_operator_of_onnxruntime_computes_what_onnxruntime_does(
    operator: str, inputs: dict[str, Any], options: dict[str, Any]
) -> None:
    assert_computes_the_same(operator, inputs, **options)


@pytest.mark.parametrize("opset", [12, 13])
def test_quantized_probabilities_are_of_as_many_axes_as_their_opset_says(opset: int) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (uint8[3,4,5] x) => (uint8[3,4,5] y)
        <float s = {{0.1}}, uint8 z = {{100}}, float t = {{0.003}}, uint8 o = {{0}}> {{
          y = com.microsoft.QLinearSoftmax <axis = 1, opset = {opset}> (x, s, z, t, o) }}"""
    )
    x = np.random.default_rng(0).integers(80, 120, (3, 4, 5)).astype("uint8")
    (expected,) = by_onnxruntime(model, {"x": x})
    assert np.abs(autocast.from_onnx(model)(x).astype(int) - expected).max() <= 1


@pytest.mark.parametrize("dtype", ["INT4", "UINT4"])
@pytest.mark.parametrize("scales", ["one", "an axis", "blocks"])
@pytest.mark.parametrize("is_constant", [False, True], ids=["initializer", "constant"])
def test_weights_of_4_bits_are_the_numbers_that_they_stand_for(dtype: str, scales: str, is_constant: bool) -> None:
    low, high = (-8, 8) if dtype == "INT4" else (0, 16)
    generator, kind = np.random.default_rng(0), getattr(TensorProto, dtype)
    shape, attributes = {"one": ((), {}), "an axis": ((8,), {"axis": 1}), "blocks": ((3, 8), {"axis": 0})}[scales]
    attributes |= {"block_size": 2} if scales == "blocks" else {}
    steps, zeros = generator.integers(low, high, (6, 8)), generator.integers(low, high, shape)
    scale = generator.random(shape).astype("float32")
    numbers = {"w": steps, "z": np.asarray(zeros)}
    packed = [helper.make_tensor(name, kind, one.shape, one.flatten()) for name, one in numbers.items()]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"], **attributes),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]
    constants = [numpy_helper.from_array(np.asarray(scale), "s"), *packed]
    if is_constant:
        nodes, constants = [helper.make_node("Constant", [], ["w"], value=packed[0]), *nodes], [constants[0], packed[1]]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, (3, size))] for name, size in (("x", 6), ("y", 8))
    )
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = random(3, 6)
    if scales == "blocks":
        zeros, scale = np.repeat(zeros, 2, 0), np.repeat(scale, 2, 0)
    weight = (steps - zeros) * scale
    np.testing.assert_allclose(autocast.from_onnx(model)(x), x @ weight, rtol=1e-4, atol=1e-5)
