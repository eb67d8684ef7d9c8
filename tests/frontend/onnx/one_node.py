"""Models of one node of onnxruntime's own, or of `ai.onnx.ml`, and what onnxruntime makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

import autocast


def by_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The results of a model, without onnxruntime's optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def random(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        return generator.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    return generator.standard_normal(shape).astype(dtype)


def one_node(
    operator: str,
    inputs: Mapping[str, np.ndarray | None],
    results: Sequence[str] = ("y",),
    axes: Mapping[str, int] | None = None,
    dims: Mapping[str, Sequence[str | int]] | None = None,
    dtypes: Mapping[str, str] | None = None,
    domain: str = "com.microsoft",
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node, whose inputs are the model's.

    Parameters
    ----------
    operator, inputs, attributes
        An input of None is left out.
    results
        The names of the results; empty for those that are not read.
    axes
        How many a result has that has not as many as the first input.
    dims
        Names for the dimensions of inputs, where they vary.
    dtypes
        Of results that are not float32.
    domain
        The node's.
    """
    given = {name: value for name, value in inputs.items() if value is not None}
    node = helper.make_node(
        operator, [name if name in given else "" for name in inputs], [*results], domain=domain, **attributes
    )
    rank = next(iter(given.values())).ndim
    kinds = {
        name: helper.np_dtype_to_tensor_dtype(np.dtype((dtypes or {}).get(name, "float32"))) for name in results if name
    }
    graph = helper.make_graph(
        [node],
        "graph",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), (dims or {}).get(name, value.shape)
            )
            for name, value in given.items()
        ],
        [
            helper.make_tensor_value_info(name, kind, [None] * (axes or {}).get(name, rank))
            for name, kind in kinds.items()
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 4 if domain == "ai.onnx.ml" else 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def assert_computes_the_same(operator: str, inputs: Mapping[str, np.ndarray | None], **options: Any) -> None:
    """A model of one node is what onnxruntime makes of it; `options` are those of `one_node`."""
    model = one_node(operator, inputs, **options)
    given = {name: value for name, value in inputs.items() if value is not None}
    outputs = autocast.from_onnx(model)(*given.values())
    for got, expected in zip(
        outputs if isinstance(outputs, tuple) else (outputs,), by_onnxruntime(model, given), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)
