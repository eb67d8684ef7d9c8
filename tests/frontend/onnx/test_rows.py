"""ONNX's `Scan`, and `Loop` that returns rows, beside ONNX's reference."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; make test installs it")

import autocast
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
