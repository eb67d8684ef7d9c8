"""ONNX models that compute shapes of sizes that vary, beside ONNX's reference."""

# ruff: noqa: E402 (what the imports need may not be installed)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")

from onnx.reference import ReferenceEvaluator

import autocast
from autocast.errors import InputError, UnsupportedError


def model_of(text: str) -> Any:
    return onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 20]>\n' + text)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


#: A shape of sizes that are picked, multiplied and joined.
_FLATTENED = """
    main (float[N, S, 4] x) => (float[M, K] y)
        <int64 zero = {0}, int64 one = {1}, int64 four = {4}, int64[1] first = {0}> {
        shape = Shape (x)
        n = Gather (shape, zero)
        s = Gather (shape, one)
        rows = Mul (n, s)
        half = Div (rows, one)
        a = Unsqueeze (half, first)
        b = Unsqueeze (four, first)
        to = Concat <axis = 0> (a, b)
        y = Reshape (x, to)
    }
"""

#: What torch's exporter makes of `expand(-1, n, -1)`.
_EXPANDED = """
    main (float[1, N, 3] x, float[B, 2] z) => (float[B, N, 3] y)
        <int64 zero = {0}, int64[1] first = {0}, int64[3] ones = {1, 1, 1}, int64[3] minus = {-1, -1, -1},
         int64[2] rest = {-1, -1}> {
        shape = Shape <start = 0, end = 1> (z)
        wanted = Concat <axis = 0> (shape, rest)
        keeps = Equal (wanted, minus)
        to = Where (keeps, ones, wanted)
        y = Expand (x, to)
    }
"""

#: Positions up to a length, of a table that is longer.
_POSITIONS = """
    main (float[B, S, 2] x) => (float[B, S, 2] y, int64[S] places)
        <float[6, 2] table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, int64 zero = {0},
         int64 one = {1}, int64[1] first = {0}> {
        length = Shape <start = 1, end = 2> (x)
        rows = Slice (table, first, length, first)
        y = Add (x, rows)
        count = Gather (length, zero)
        places = Range (zero, count, one)
    }
"""

#: Zeros and copies, as many as there are rows.
_FILLED = """
    main (float[N, 2] x) => (float[N, 3] y, float[M, 2] z)
        <int64[1] three = {3}, int64[1] two = {2}, int64[1] one = {1}> {
        rows = Shape <start = 0, end = 1> (x)
        shape = Concat <axis = 0> (rows, three)
        y = ConstantOfShape (shape)
        repeats = Concat <axis = 0> (rows, one)
        z = Tile (x, repeats)
    }
"""

#: Halved, and doubled again: as many as there were if that was even.
_HALVED = """
    main (float[1, 1, H, 4] x) => (float[1, 1, H, 4] y) <float[4] scales = {1, 1, 2, 2}> {
        low = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
        high = Resize <mode = "nearest"> (low, , scales)
        y = Add (high, x)
    }
"""

#: What is left of an axis is 1 for one size alone.
_SQUEEZED = """
    main (float[1, 1, T] x) => (float[1, 1] y) <int64[1] last = {2}> {
        low = MaxPool <kernel_shape = [4], strides = [4]> (x)
        y = Squeeze (low, last)
    }
"""


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (_FLATTENED, [[(2, 3, 4)], [(5, 1, 4)]]),
        (_EXPANDED, [[(1, 2, 3), (4, 2)], [(1, 1, 3), (1, 2)]]),
        (_POSITIONS, [[(2, 3, 2)], [(1, 6, 2)]]),
        (_FILLED, [[(2, 2)], [(3, 2)]]),
        (_HALVED, [[(1, 1, 2, 4)], [(1, 1, 6, 4)]]),
        (_SQUEEZED, [[(1, 1, 4)], [(1, 1, 7)]]),
    ],
    ids=["Reshape", "Expand", "Slice", "ConstantOfShape", "Resize", "Squeeze"],
)
def test_shapes_that_a_graph_computes_follow_the_sizes_of_its_inputs(
    text: str, shapes: list[list[tuple[int, ...]]]
) -> None:
    model = model_of(text)
    imported = autocast.from_onnx(model)
    names = [value.name for value in model.graph.input]
    for sizes in shapes:
        inputs = [random(*size) for size in sizes]
        expected = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
        outputs = imported(*inputs)
        for got, wanted in zip(outputs if isinstance(outputs, tuple) else (outputs,), expected, strict=True):
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("text", "shape"), [(_POSITIONS, (1, 7, 2)), (_HALVED, (1, 1, 5, 4)), (_SQUEEZED, (1, 1, 8))])
def test_sizes_that_have_to_agree_are_compared_when_the_model_runs(text: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="needs"):
        autocast.from_onnx(model_of(text))(random(*shape))


def test_a_shape_that_is_an_input_is_refused() -> None:
    text = "main (float[6] x, int64[2] to) => (float[N, M] y) { y = Reshape (x, to) }"
    with pytest.raises(UnsupportedError, match="Reshape: its shape is computed when the model runs"):
        autocast.from_onnx(model_of(text))
