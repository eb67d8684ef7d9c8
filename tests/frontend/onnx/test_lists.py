"""ONNX's lists of tensors, and values that may be none, where it is known what is in them."""

# ruff: noqa: E402 (what the imports need may not be installed)

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; make test installs it")

import autocast
from autocast.errors import UnsupportedError
from tests.frontend.onnx.one_node import by_onnxruntime, random
from tests.frontend.onnx.test_control import model_of

#: Each of what a list can be made of, and of what can be asked of one.
_MODELS = [
    """
    (float[N, 2] x, float[M, 2] z) => (float[K, 2] whole, float[M, 2] second, int64 count)
        <int64 one = {1}, int64 first = {0}, int64 last = {-1}> {
        none = SequenceEmpty <dtype = 1> ()
        a = SequenceInsert (none, x)
        b = SequenceInsert (a, z, first)
        c = SequenceInsert (b, x)
        d = SequenceErase (c)
        e = SequenceErase (c, first)
        f = SequenceInsert (e, z, last)
        count = SequenceLength (f)
        whole = ConcatFromSequence <axis = 0> (d)
        second = SequenceAt (f, one)
    }
    """,
    """
    (float[2, 6] x, float[2, 6] z) => (float[2, 2] y, float[2, 1] last, float[2] row, float[2, 2, 6] both,
        float[2, 4] p)
        <int64 zero = {0}, int64 end = {-1}, int64[3] lengths = {2, 3, 1}, int64 four = {4}> {
        parts = SplitToSequence <axis = 1> (x, lengths)
        y = SequenceAt (parts, zero)
        last = SequenceAt (parts, end)
        rows = SplitToSequence <axis = 1, keepdims = 0> (x)
        row = SequenceAt (rows, end)
        pair = SequenceConstruct (x, z)
        both = ConcatFromSequence <axis = 1, new_axis = 1> (pair)
        fours = SplitToSequence <axis = 1> (z, four)
        p = SequenceAt (fours, zero)
    }
    """,
    """
    (float[N, 2] x, float[N, 2] z) => (float[N, 4] y, float[N, 2] there, bool is_there) {
        pair = SequenceConstruct (x, z)
        squares = SequenceMap (pair) <body = square (float[N, 2] a) => (float[N, 2] b) { b = Mul (a, a) }>
        y = ConcatFromSequence <axis = 1> (squares)
        maybe = Optional (x)
        there = OptionalGetElement (maybe)
        is_there = OptionalHasElement (maybe)
    }
    """,
]


@pytest.mark.parametrize("text", _MODELS)
def test_tensors_of_lists_that_are_known_are_those_that_were_put_in(text: str) -> None:
    model = model_of(f"main {text}")
    rows = 2 if "[2, 6]" in text else 3
    columns = 6 if "[2, 6]" in text else 2
    x, z = random(rows, columns), random(rows, columns, seed=1)
    expected = by_onnxruntime(model, {"x": x, "z": z})
    for got, wanted in zip(autocast.from_onnx(model)(x, z), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "(float[N] x, int64 at) => (float[N] y) { s = SequenceConstruct (x, x) y = SequenceAt (s, at) }",
        "(float[N] x, int64 n) => (float[M] y) <int64 at = {0}> { s = SplitToSequence (x, n) y = SequenceAt (s, at) }",
        "(float[N] x) => (seq(float[N]) s) { s = SequenceConstruct (x, x) }",
    ],
)
def test_lists_that_nobody_knows_before_are_refused(text: str) -> None:

    with pytest.raises(UnsupportedError, match=r"Sequence\w* with a value that is no tensor: 1 node"):
        autocast.from_onnx(model_of(f"main {text}"))


_ROWS = """
    (float[2, N, 3] x, float[A, B] y) => (float[M, 2, 3] doubled, float[2, M, 3] moved, float[L, 3] joined,
        float[2, 3] last, float[A, 1] column, float[A, B] same, int64 count)
        <int64 end = {-1}, bool yes = {1}> {
        rows = SplitToSequence <axis = 1, keepdims = 0> (x)
        count = SequenceLength (rows)
        last = SequenceAt (rows, end)
        none = SequenceEmpty <dtype = 1> ()
        none_either = SequenceEmpty ()
        made, others = Loop (count, yes, none, none_either) <
            body = step (int64 i, bool c, seq(float[2, 3]) before, seq(float[2, 3]) others_before)
                    => (bool d, seq(float[2, 3]) after, seq(float[2, 3]) others_after) {
                row = SequenceAt (rows, i)
                twice = Add (row, row)
                after = SequenceInsert (before, twice)
                others_after = SequenceInsert (others_before, row)
                d = Identity (c)
            }
        >
        doubled = ConcatFromSequence <axis = 0, new_axis = 1> (made)
        joined = ConcatFromSequence <axis = 0> (others)
        moved = ConcatFromSequence <axis = 1, new_axis = 1> (rows)
        columns = SplitToSequence <axis = 1> (y)
        column = SequenceAt (columns, end)
        same = ConcatFromSequence <axis = -1> (columns)
    }
"""


def test_lists_of_any_length_whose_tensors_are_rows_are_a_tensor() -> None:
    model = model_of("main " + _ROWS)
    imported = autocast.from_onnx(model)
    for count in (1, 4):
        inputs = {"x": random(2, count, 3), "y": random(4, count)}
        for got, wanted in zip(imported(*inputs.values()), by_onnxruntime(model, inputs), strict=True):
            np.testing.assert_array_equal(got, wanted)
