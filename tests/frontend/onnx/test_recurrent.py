"""ONNX's recurrent layers, beside onnxruntime."""

# ruff: noqa: E402 (what the imports need may not be installed)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `test` is not installed; make test installs it")

import autocast
from autocast.errors import UnsupportedError
from autocast.ir import is_op

TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper

STEPS, BATCH, INPUT, HIDDEN = 3, 3, 4, 6
MATRICES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def layer(name: str, inputs: str = "XWRBlhc", steps: int | str = STEPS, **attributes: Any) -> Any:
    """A model of one layer with parameters of its own; of its inputs, those whose letters are in `inputs`."""
    rng, matrices = np.random.default_rng(0), MATRICES[name]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    shapes = {
        "W": (directions, matrices * HIDDEN, INPUT),
        "R": (directions, matrices * HIDDEN, HIDDEN),
        "B": (directions, 2 * matrices * HIDDEN),
        "h": (directions, BATCH, HIDDEN),
        "c": (directions, BATCH, HIDDEN),
        "P": (directions, 3 * HIDDEN),
    }
    tensors = {letter: rng.standard_normal(shape).astype("float32") / 2 for letter, shape in shapes.items()}
    tensors["l"] = np.array([3, 1, 2], "int32")
    order = "XWRBlhcP" if name == "LSTM" else "XWRBlh"
    outputs = ["y", "y_h", "y_c"][: 3 if name == "LSTM" else 2]
    node = helper.make_node(
        name, [letter if letter in inputs else "" for letter in order], outputs, hidden_size=HIDDEN, **attributes
    )
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [steps, BATCH, INPUT])],
        [
            helper.make_tensor_value_info(output, TensorProto.FLOAT, [None] * (4 if output == "y" else 3))
            for output in outputs
        ],
        [numpy_helper.from_array(tensors[letter], letter) for letter in order if letter in inputs and letter != "X"],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize(
    ("name", "inputs", "attributes"),
    [
        ("RNN", "XWRBlh", {"direction": "bidirectional"}),
        ("RNN", "XWR", {"activations": ["Relu"]}),
        ("GRU", "XWRBlh", {"direction": "bidirectional", "linear_before_reset": 1}),
        ("GRU", "XWRBh", {"direction": "reverse", "linear_before_reset": 0}),
        ("LSTM", "XWRBlhc", {"direction": "bidirectional"}),
        ("LSTM", "XWRBP", {"direction": "reverse"}),
    ],
)
def test_a_layer_computes_what_onnxruntime_does(name: str, inputs: str, attributes: dict[str, Any]) -> None:
    model = layer(name, inputs, **attributes)
    x = np.random.default_rng(1).standard_normal((STEPS, BATCH, INPUT)).astype("float32")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, expected in zip(autocast.from_onnx(model)(x), session.run(None, {"X": x}), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "inputs", "attributes"),
    [
        ("LSTM", "XWRBhc", {"direction": "bidirectional"}),
        ("GRU", "XWRB", {"direction": "reverse", "linear_before_reset": 1}),
        ("GRU", "XWRh", {"linear_before_reset": 1}),
        ("RNN", "XWRB", {"activations": ["Relu"]}),
    ],
)
def test_a_layer_as_torch_has_it_is_one_operator_for_any_number_of_steps(
    name: str, inputs: str, attributes: dict[str, Any]
) -> None:
    file = layer(name, inputs, steps="steps", **attributes)
    model = autocast.from_onnx(file)
    values = [binding.value for block in model.main.body.blocks for binding in block.bindings]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    assert sum(is_op(value, f"relax.nn.{name.lower()}") for value in values) == directions
    session = onnxruntime.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    for steps in (1, 9):
        x = np.random.default_rng(1).standard_normal((steps, BATCH, INPUT)).astype("float32")
        for got, expected in zip(model(x), session.run(None, {"X": x}), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "inputs", "attributes"),
    [
        ("LSTM", "XWRBlhc", {"direction": "bidirectional"}),
        ("LSTM", "XWRl", {}),
        ("GRU", "XWRBlh", {"direction": "bidirectional", "linear_before_reset": 1}),
        ("RNN", "XWRBlh", {"direction": "reverse"}),
        ("GRU", "XWRBlh", {"direction": "bidirectional"}),
    ],
)
def test_sequences_of_other_lengths_are_one_operator_as_well(
    name: str, inputs: str, attributes: dict[str, Any]
) -> None:
    """What is behind the end of a sequence is not read; only where torch has no such layer it is a loop."""
    file = layer(name, inputs, steps="steps", **attributes)
    ends = next(tensor for tensor in file.graph.initializer if tensor.name == "l")
    file.graph.initializer.remove(ends)
    file.graph.input.append(helper.make_tensor_value_info("l", TensorProto.INT32, [BATCH]))
    model = autocast.from_onnx(file)
    values = [binding.value for block in model.main.body.blocks for binding in block.bindings]
    whole = name != "GRU" or attributes.get("linear_before_reset")
    assert any(is_op(value, f"relax.nn.{name.lower()}") for value in values) == bool(whole)
    session = onnxruntime.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    for steps, lengths in ((5, [5, 1, 3]), (7, [4, 0, 7]), (1, [1, 1, 1])):
        x = np.random.default_rng(1).standard_normal((steps, BATCH, INPUT)).astype("float32")
        for at, length in enumerate(lengths):
            x[length:, at] = np.nan
        given = {"X": x, "l": np.array(lengths, "int32")}
        for got, expected in zip(model(*given.values()), session.run(None, given), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "inputs", "attributes"),
    [
        ("GRU", "XWRBh", {"direction": "reverse", "linear_before_reset": 0}),
        ("LSTM", "XWRBlhcP", {"direction": "bidirectional"}),
    ],
)
def test_what_torch_has_no_layer_of_is_a_loop_of_any_number_of_steps(
    name: str, inputs: str, attributes: dict[str, Any]
) -> None:
    file = layer(name, inputs, steps="steps", **attributes)
    model = autocast.from_onnx(file)
    session = onnxruntime.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    for steps in (3, 7):
        x = np.random.default_rng(1).standard_normal((steps, BATCH, INPUT)).astype("float32")
        for got, expected in zip(model(x), session.run(None, {"X": x}), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (layer("GRU", clip=1.0), "GRU with clip"),
        (layer("LSTM", input_forget=1), "LSTM with input_forget=1"),
        (layer("RNN", activations=["Affine"]), "RNN with the activation Affine is not imported; expected relu"),
    ],
    ids=["clip", "coupled gates", "an activation"],
)
def test_what_is_not_imported_of_a_layer_is_refused(model: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"from_onnx: the node (LSTM|GRU|RNN): {message}"):
        autocast.from_onnx(model)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_a_layer_of_quantized_weights_is_near_what_onnxruntime_rounds_further(direction: str) -> None:
    count, width, units = 1 + (direction == "bidirectional"), 5, 4
    rng = np.random.default_rng(0)
    # Of 7 bits: of 8, onnxruntime cuts sums of two products at 2^15 where a processor has no VNNI.
    weights = {
        name: rng.integers(-63, 64, (count, rows, 4 * units), dtype="int8")
        for name, rows in (("w", width), ("r", units))
    }
    scales = {f"{name}_scale": np.full(count, 0.008, "float32") for name in weights}
    zeros = {f"{name}_zero": np.array([3, -2], "int8")[:count] for name in weights}
    names = ["x", "w", "r", "", "", "", "", "", "w_scale", "w_zero", "r_scale", "r_zero"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["y", "h", "c"], domain="com.microsoft", hidden_size=units, direction=direction
    )
    floats = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", floats, ["steps", 2, width])],
        [helper.make_tensor_value_info(name, floats, None) for name in ("y", "h", "c")],
        [onnx.numpy_helper.from_array(array, name) for name, array in (weights | scales | zeros).items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    imported = autocast.from_onnx(model)
    for steps in (1, 6):
        x = rng.standard_normal((steps, 2, width)).astype("float32")
        for got, wanted in zip(imported(x), session.run(None, {"x": x}), strict=True):
            assert np.asarray(got).shape == wanted.shape
            assert np.abs(got - wanted).max() < 0.02 * np.abs(wanted).max()
