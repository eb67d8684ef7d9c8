"""ONNX's `Scan`, and `Loop` that returns rows, beside ONNX's reference."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; make test installs it")

import autocast
from autocast.errors import UnsupportedError
from tests.frontend.onnx.one_node import by_onnxruntime
from tests.frontend.onnx.test_control import model_of, random

#: Rows of two tensors, one from its end, with a state between the steps.
_SCAN = """
    main (float[2] first, float[4, 2] x, float[2, 4] z) => (float[2] last, float[2, 4] rows) {
        last, rows = Scan <
            num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [0, 1], scan_output_axes = [1],
            scan_output_directions = [1],
            body = step (float[2] s, float[2] a, float[2] b) => (float[2] t, float[2] row) {
                p = Mul (a, b)
                t = Add (s, p)
                row = Tanh (t)
            }
        > (first, x, z)
    }
"""


@pytest.mark.parametrize("length", ["4", "N"])
def test_a_scan_takes_rows_in_the_order_that_it_says(length: str) -> None:
    # ONNX's reference has neither axes nor directions.
    text = _SCAN.replace("4]", f"{length}]").replace("[4,", f"[{length},")
    first, x, z = random(2), random(4, 2), random(2, 4)
    states, rows = [first], []
    for a, b in zip(x, z.T[::-1], strict=True):
        states.append(states[-1] + a * b)
        rows.append(np.tanh(states[-1]))
    last, got = autocast.from_onnx(model_of(text))(first, x, z)
    np.testing.assert_allclose(last, states[-1], rtol=1e-5)
    np.testing.assert_allclose(got, np.stack(rows[::-1], axis=1), rtol=1e-5)


#: The rows of `x` in a state, each with what was before it, until a sum passes a bound; `{goes_on}` may say otherwise.
_ROWS = """
    main (float[N, 2] x, float bound) => (float[2] y, float[K, 2] sums, int64[K] numbers)
        <float[2] none = {{0, 0}}, bool yes = {{1}}, int64 first = {{0}}> {{
        sizes = Shape (x)
        most = Gather (sizes, first)
        y, sums, numbers = Loop (most, yes, none) <
            body = step (int64 i, bool before, float[2] s) => (bool more, float[2] t, float[2] row, int64 number) {{
                part = Gather (x, i)
                t = Add (s, part)
                sum = ReduceSum <keepdims = 0> (t)
                {goes_on}
                row = Identity (t)
                number = Identity (i)
            }}
        >
    }}
"""


@pytest.mark.parametrize("goes_on", ["more = Less (sum, bound)", "more = Identity (before)"])
def test_a_loop_returns_a_row_for_each_step_that_it_takes(goes_on: str) -> None:
    model = model_of(_ROWS.format(goes_on=goes_on))
    imported = autocast.from_onnx(model)
    for rows, bound in ((4, 2.5), (7, 100.0), (1, 0.0), (0, 1.0)):
        inputs = {"x": np.abs(random(rows, 2)), "bound": np.array(bound, "float32")}
        expected = by_onnxruntime(model, inputs)
        for got, wanted in zip(imported(*inputs.values()), expected, strict=True):
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=1e-5)


#: What torch's exporter makes of tensors that a loop joins to what it has, here in front of it and behind others.
_GROWING = """
    main (float[N, 3] x, float[P, 3] start, float[2, K] wide) => (float[M, 3] y, float[2, L] z, float[3] last)
        <bool yes = {1}, int64 zero = {0}, int64[1] first = {0}> {
        sizes = Shape (x)
        count = Gather (sizes, zero)
        none = Constant <value = float[3] {0, 0, 0}> ()
        y, last, z = Loop (count, yes, start, none, wide) <
            body = step (int64 i, bool c, float[A, 3] rows, float[3] sum, float[2, B] columns)
                    => (bool d, float[E, 3] more, float[3] next, float[2, F] wider) {
                part = Gather (x, i)
                next = Add (sum, part)
                row = Unsqueeze (next, first)
                kept = Cast <to = 1> (rows)
                more = Concat <axis = 0> (kept, row)
                both = Concat <axis = 0> (row, row)
                wider = Concat <axis = -1> (columns, both)
                d = Identity (c)
            }
        >
    }
"""


def test_a_state_to_which_each_step_appends_is_rows() -> None:
    model = model_of(_GROWING)
    imported = autocast.from_onnx(model)
    for count, before, columns in ((4, 0, 2), (1, 2, 0), (0, 1, 3)):
        inputs = {"x": random(count, 3), "start": random(before, 3), "wide": random(2, columns)}
        for got, wanted in zip(imported(*inputs.values()), by_onnxruntime(model, inputs), strict=True):
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_a_growing_state_that_a_step_reads_is_refused() -> None:
    text = _GROWING.replace("d = Identity (c)", "d = Identity (c) seen = ReduceSum <keepdims = 0> (rows)")
    with pytest.raises(UnsupportedError, match="its states are"):
        autocast.from_onnx(model_of(text))


#: A part of each row, as long as another input says, made larger.
_SIZED = """
    main (float[N, 4] x, int64[N] lengths) => (float[N, 3] y) <int64[1] zero = {0}, int64[3] one = {1, 1, 3},
        int64 at = {0}, bool yes = {1}> {
        sizes = Shape (x)
        count = Gather (sizes, at)
        y = Loop (count, yes) <
            body = step (int64 i, bool c) => (bool d, float[3] row) {
                whole = Gather (x, i)
                length = Gather (lengths, i)
                end = Unsqueeze (length, zero)
                part = Slice (whole, zero, end, zero)
                long = Shape (part)
                ones = Constant <value = int64[2] {1, 1}> ()
                shape = Concat <axis = 0> (ones, long)
                image = Reshape (part, shape)
                wide = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (image, , , one)
                flat = Constant <value = int64[1] {3}> ()
                row = Reshape (wide, flat)
                d = Identity (c)
            }
        >
    }
"""


def test_sizes_that_values_decide_are_known_within_a_step() -> None:
    model = model_of(_SIZED)
    imported = autocast.from_onnx(model)
    for lengths in ((2, 4, 1), (3,)):
        inputs = {"x": random(len(lengths), 4), "lengths": np.array(lengths)}
        got, (wanted,) = imported(*inputs.values()), by_onnxruntime(model, inputs)
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
