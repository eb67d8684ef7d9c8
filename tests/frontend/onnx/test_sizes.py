"""ONNX models that compute shapes of sizes that vary, beside ONNX's reference."""

# ruff: noqa: E402 (what the imports need may not be installed)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")

from onnx.reference import ReferenceEvaluator

import autocast
from autocast.errors import InputError


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


@pytest.mark.parametrize(
    "bounds", ["n, below, back", "below, n, two", "n, two, back", "two, n, one", "half, whole, step"]
)
def test_ranges_of_sizes_count_as_onnx_does(bounds: str) -> None:
    """Backwards, as XLNet's places are counted, and where there are none."""
    model = model_of(
        f"""
        main (float[N, 2] x) => (float[M] y)
            <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64 back = {{-2}}, float step = {{1}}> {{
            shape = Shape (x)
            n = Gather (shape, zero)
            below = Neg (n)
            whole = Cast <to = 1> (n)
            part = Constant <value_float = 0.5> ()
            half = Mul (whole, part)
            places = Range ({bounds})
            y = Cast <to = 1> (places)
        }}
        """
    )
    imported = autocast.from_onnx(model)
    for count in (1, 2, 5):
        (expected,) = ReferenceEvaluator(model).run(None, {"x": random(count, 2)})
        np.testing.assert_array_equal(imported(random(count, 2)), expected)


@pytest.mark.parametrize("operator", ["Add", "Max", "Mean", "Min", "Sum"])
def test_a_product_of_sizes_in_another_order_is_the_same_size(operator: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        main (float[b,t,2] x) => (float[n] y) {{
            m = Constant <value = int64[1] {{-1}}> ()
            half = Constant <value = float {{0.5}}> ()
            b0 = Shape <start = 0, end = 1> (x)
            t0 = Shape <start = 1, end = 2> (x)
            two = Shape <start = 2, end = 3> (x)
            tb = Mul (t0, b0)
            n = Mul (tb, two)
            a = Expand (half, n)
            f = Reshape (x, m)
            y = {operator} (a, f)
        }}"""
    )
    imported = autocast.from_onnx(model)
    for sizes in ((2, 3, 2), (1, 5, 2)):
        x = random(*sizes)
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
        np.testing.assert_allclose(imported(x), expected, rtol=1e-6)


@pytest.mark.parametrize(("text", "shape"), [(_POSITIONS, (1, 7, 2)), (_HALVED, (1, 1, 5, 4)), (_SQUEEZED, (1, 1, 8))])
def test_sizes_that_have_to_agree_are_compared_when_the_model_runs(text: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="needs"):
        autocast.from_onnx(model_of(text))(random(*shape))


#: The rows whose first number is above 0, each less their mean, and how many there are.
_FOUND = """
    main (float[N, 3] x) => (float[M, 3] y, int64 count)
        <int64[1] first = {0}, int64[1] one = {1}, float zero = {0}, int64 at = {0}> {
        columns = Gather <axis = 1> (x, at)
        chosen = Greater (columns, zero)
        where = NonZero (chosen)
        flat = Squeeze (where, first)
        rows = Gather <axis = 0> (x, flat)
        mean = ReduceMean <keepdims = 1> (rows, one)
        y = Sub (rows, mean)
        shape = Shape (y)
        count = Gather (shape, at)
    }
"""


def test_sizes_that_values_decide_have_names() -> None:
    model = model_of(_FOUND)
    imported = autocast.from_onnx(model)
    for count, offset in ((5, 0), (9, 0), (4, 10), (4, -10), (0, 0)):  # some rows, all, none
        x = random(count, 3) + np.float32(offset)
        expected = ReferenceEvaluator(model).run(None, {"x": x})
        for got, wanted in zip(imported(x), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("taken", ["v, o = TopK <axis = 0> (p, k)", "o = Slice (p, z, k, z)"])
def test_sizes_that_values_decide_within_branches_have_none(taken: str) -> None:
    result = "int64[A]" if "TopK" in taken else "float[A]"
    model = model_of(
        f"main (float[N] x, bool f, int64[1] k) => ({result} y) <int64[1] z = {{0}}, float zero = {{0}}> {{ y = If (f) "
        f"<then_branch = t () => ({result} o) {{ c = Greater (x, zero) p = Compress (x, c) {taken} }}, "
        f"else_branch = e () => ({result} o) {{ c = Less (x, zero) p = Compress (x, c) {taken} }}> }}"
    )
    imported, x = autocast.from_onnx(model), np.float32([1, -1, 2, -3, 0.5, -2])
    for flag in (True, False):
        inputs = {"x": x, "f": np.array(flag), "k": np.array([2])}
        (expected,) = ReferenceEvaluator(model).run(None, inputs)
        np.testing.assert_array_equal(imported(*inputs.values()), expected)


#: The largest of each row: as many as there are columns, but five at most.
_FIVE = """
    main (float[B, N] x) => (float[B, K] y, int64[B, K] places) <int64[1] one = {1}, int64[1] five = {5}> {
        shape = Shape (x)
        columns = Gather (shape, one)
        count = Min (columns, five)
        y, places = TopK <axis = 1> (x, count)
    }
"""


def test_the_largest_are_as_many_as_a_size_says() -> None:
    model = model_of(_FIVE)
    imported = autocast.from_onnx(model)
    for columns in (3, 5, 9):
        x = np.round(random(2, columns))  # some are equal
        expected = ReferenceEvaluator(model).run(None, {"x": x})
        for got, wanted in zip(imported(x), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("largest", [0, 1])
def test_the_largest_are_as_many_as_an_input_says(largest: int) -> None:
    model = model_of(
        "main (float[2, N, 3] x, int64[1] k) => (float[2, K, 3] y, int64[2, K, 3] places) "
        f"{{ y, places = TopK <axis = 1, largest = {largest}> (x, k) }}"
    )
    imported = autocast.from_onnx(model)
    for rows, count in ((3, 2), (5, 5), (9, 0)):
        x = random(2, rows, 3)
        expected = ReferenceEvaluator(model).run(None, {"x": x, "k": np.array([count])})
        for got, wanted in zip(imported(x, np.array([count])), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (
            "(float[N, 6] x, int64[1] k) => (float[M, 6] y) <int64[1] z = {0}> { y = Slice (x, z, k, z) }",
            [3, -1, -9, 99, 0],
        ),
        (
            "(float[N, 6] x, int64[1] k) => (float[M, 6] y) <int64[1] e = {9223372036854775807}, int64[1] z = {0}> "
            "{ y = Slice (x, k, e, z) }",
            [3, -1, -9, 99, 0],
        ),
        (
            "(float[N, 6] x, int64[1] k) => (float[M, 6] y) <int64[1] e = {-2}, int64[1] z = {0}> "
            "{ y = Slice (x, k, e, z) }",
            [1, -4, 4],
        ),
        (
            "(float[N, 6] x, int64[2] k) => (float[M, K] y) { l = Neg (k) y = Slice (x, k, l) }",
            [(1, 2), (-9, -1), (3, 1)],
        ),
    ],
    ids=["end", "begin", "both ways", "two axes"],
)
def test_slices_end_where_an_input_says(text: str, calls: list[Any]) -> None:
    model = model_of(f"main {text}")
    imported = autocast.from_onnx(model)
    module = autocast.to_torch(imported)
    for rows in (1, 5, 7):
        for numbers in calls:
            x, bounds = random(rows, 6), np.array(numbers).reshape(-1)
            (expected,) = ReferenceEvaluator(model).run(None, {"x": x, "k": bounds})
            np.testing.assert_array_equal(imported(x, bounds), expected)
            np.testing.assert_array_equal(module(torch.from_numpy(x), torch.from_numpy(bounds)), expected)


def test_what_is_rolled_is_as_long_as_before() -> None:
    model = model_of("""
    main (float[N, H] x) => (float[N, H] y, float[N, H] z)
        <int64[1] zero = {0}, int64[1] last = {-1}, int64[1] end = {9223372036854775807}, int64[1] axis = {1}> {
        tail = Slice (x, last, end, axis)
        head = Slice (x, zero, last, axis)
        rolled = Concat <axis = 1> (tail, head)
        y = Sub (rolled, x)
        z = Sub (x, rolled)
    }
    """)
    imported = autocast.from_onnx(model)
    for sizes in ((2, 5), (1, 1), (3, 2)):
        x = random(*sizes)
        for got, wanted in zip(imported(x), ReferenceEvaluator(model).run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(got, wanted)
