"""What is done to ONNX graphs before they are imported: constants are computed, definitions written out."""

# ruff: noqa: E402 (what the imports need may not be installed)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")

import autocast
from autocast.frontend.onnx.folding import LARGEST, folded
from autocast.frontend.onnx.functions import written_out

TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper


def model_of(nodes: list[Any], shape: tuple[Any, ...] = (2, 3), **initializers: np.ndarray) -> Any:
    """A model of one input `x` and one output `y`."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))],
        [numpy_helper.from_array(value, name) for name, value in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def operators(model: Any) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_what_is_computed_of_known_sizes_is_a_constant() -> None:
    model = model_of(
        [
            helper.make_node("Shape", ["x"], ["sizes"]),
            helper.make_node("Gather", ["sizes", "one"], ["width"]),
            helper.make_node("Cast", ["width"], ["divisor"], to=TensorProto.FLOAT),
            helper.make_node("Div", ["x", "divisor"], ["y"]),
        ],
        one=np.array(1),
    )
    assert operators(folded(model)) == ["Constant", "Constant", "Constant", "Div"]
    x = np.ones((2, 3), "float32")
    np.testing.assert_allclose(autocast.from_onnx(model)(x), x / 3, rtol=1e-6)


def test_a_size_that_varies_is_none() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["sizes"]), helper.make_node("Reshape", ["x", "sizes"], ["y"])]
    assert operators(folded(model_of(nodes, ("batch", 3)))) == ["Shape", "Reshape"]


def test_parameters_and_what_is_computed_of_them_stay() -> None:
    nodes = [helper.make_node("Neg", ["weight"], ["negative"]), helper.make_node("Add", ["x", "negative"], ["y"])]
    model = model_of(nodes, weight=np.ones((2, 3), "float32"))
    assert operators(folded(model)) == ["Neg", "Add"]
    assert set(autocast.from_onnx(model).params) == {"weight"}


def test_large_and_random_tensors_stay() -> None:
    large = helper.make_node("ConstantOfShape", ["size"], ["ones"])
    random = helper.make_node("RandomNormal", [], ["noise"], shape=[3])
    for node in (large, random):
        nodes = [node, helper.make_node("Add", ["x", node.output[0]], ["y"])]
        assert node.op_type in operators(folded(model_of(nodes, size=np.array([LARGEST + 1]))))


@pytest.mark.parametrize("taken", [True, False])
def test_of_an_if_on_a_constant_one_branch_stays(taken: bool) -> None:
    result = helper.make_tensor_value_info("z", TensorProto.FLOAT, [None, None])
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Constant", [], ["two"], value_float=2.0), helper.make_node(op, ["x", "two"], ["z"])],
            name,
            [],
            [result],
        )
        for name, op in (("then", "Mul"), ("else", "Add"))
    }
    model = model_of([helper.make_node("If", ["flag"], ["y"], **branches)], flag=np.array(taken))
    assert "If" not in operators(folded(model))
    x = np.full((2, 3), 3, "float32")
    np.testing.assert_array_equal(autocast.from_onnx(model)(x), x * 2 if taken else x + 2)


def test_a_function_of_the_model_is_written_out() -> None:
    double = helper.make_function(
        "own", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 20)]
    )
    model = model_of([helper.make_node("Double", ["x"], ["y"], domain="own")])
    model.functions.append(double)
    model.opset_import.append(helper.make_opsetid("own", 1))
    assert operators(written_out(model, frozenset())) == ["Add"]
    x = np.ones((2, 3), "float32")
    np.testing.assert_array_equal(autocast.from_onnx(model)(x), x * 2)


@pytest.mark.parametrize(("given", "slope"), [({}, 0.3), ({"alpha": 0.5}, 0.5)])
def test_a_function_of_the_model_has_defaults(given: dict[str, float], slope: float) -> None:
    leaky = onnx.parser.parse_function(
        '<opset_import: ["" : 20], domain: "own"> leaky <alpha: float = 0.3> (a) => (b) '
        "{ b = LeakyRelu <alpha: float = @alpha> (a) }"
    )
    outer = onnx.parser.parse_function(
        '<opset_import: ["" : 20, "own" : 1], domain: "own"> outer (a) => (b) { b = own.leaky (a) }'
    )
    name = "leaky" if given else "outer"  # the default is said within a function, too
    model = model_of([helper.make_node(name, ["x"], ["y"], domain="own", **given)])
    model.functions.extend([leaky, outer])
    model.opset_import.append(helper.make_opsetid("own", 1))
    x = np.full((2, 3), -1, "float32")
    np.testing.assert_allclose(autocast.from_onnx(model)(x), x * np.float32(slope))


def test_an_operator_that_is_known_is_not_written_out() -> None:
    model = model_of([helper.make_node("Celu", ["x"], ["y"])])
    assert operators(written_out(model, frozenset({"Celu"}))) == ["Celu"]
    assert "Celu" not in operators(written_out(model, frozenset()))
