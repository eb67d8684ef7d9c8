"""Arithmetic of sizes that vary, beside onnxruntime: what is settled before a model runs is what it would compute."""

# ruff: noqa: E402 (what the imports need may not be installed)

from __future__ import annotations

import random as numbers

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed; make test installs it")

import autocast
from tests.frontend.onnx.test_sizes import model_of, random
from tests.frontend.onnx.test_varying_operators import compared

#: Operators of integers -> how many operands they have.
_OPERATORS = {"Add": 2, "Sub": 2, "Mul": 2, "Div": 2, "Mod": 2, "Min": 2, "Max": 2, "Neg": 1}
_COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def _random_graph(seed: int) -> str:
    """Integers that are computed of two sizes; divisors are never 0."""
    draw = numbers.Random(seed)
    lines, names = [], ["a", "b", "m", "two", "five"]
    flags: list[str] = []
    for at in range(14):
        kind = draw.choice([*_OPERATORS, "compare", "Where", "floats"])
        left, right = draw.choice(names), draw.choice(names)
        if kind in ("Div", "Mod", "floats"):
            lines.append(f"d{at} = Max ({right}, one)")
            right = f"d{at}"
        if kind == "compare" or (kind == "Where" and not flags):
            lines.append(f"f{at} = {draw.choice(_COMPARISONS)} ({left}, {right})")
            flags.append(f"f{at}")
            continue
        if kind == "Where":
            lines.append(f"n{at} = Where ({draw.choice(flags)}, {left}, {right})")
        elif kind == "floats":
            rounding = draw.choice(["Floor", "Ceil", "Identity"])
            lines.append(f"x{at} = Cast <to = 1> ({left})")
            lines.append(f"y{at} = Cast <to = 1> ({right})")
            lines.append(f"z{at} = Div (x{at}, y{at})")
            lines.append(f"r{at} = {rounding} (z{at})")
            lines.append(f"n{at} = Cast <to = 7> (r{at})")
        else:
            lines.append(f"n{at} = {kind} ({', '.join([left, right][: _OPERATORS[kind]])})")
        names.append(f"n{at}")
    results = [*names[5:], *flags]
    outputs = ", ".join(f"{'bool' if name in flags else 'int64'}[1] {name}" for name in results)
    return (
        f"(float[A, B] x) => ({outputs}) <int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] five = {{5}}, "
        "int64[1] m = {-3}> { a = Shape <start = 0, end = 1> (x) b = Shape <start = 1, end = 2> (x) "
        + " ".join(lines)
        + " }"
    )


@pytest.mark.parametrize("seed", range(25))
def test_random_arithmetic_of_sizes_is_what_the_model_would_compute(seed: int) -> None:
    compared(_random_graph(seed), *[(random(*sizes),) for sizes in ((0, 1), (1, 3), (2, 2), (5, 4), (7, 2))])


def test_sizes_over_sizes_are_scales() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 4, opset_import: ["" : 9]>
        main (float[1, 2, N, M] x, float[1, 2, H, W] z) => (float[1, 2, H, W] y)
            <float[2] ones = {1, 1}, int64[2] spatial = {2, 3}> {
            from = Shape (x)
            to = Shape (z)
            a = Gather (from, spatial)
            b = Gather (to, spatial)
            p = Cast <to = 1> (a)
            q = Cast <to = 1> (b)
            r = Div (q, p)
            scales = Concat <axis = 0> (ones, r)
            y = Upsample <mode = "nearest"> (x, scales)
        }"""
    )
    imported = autocast.from_onnx(model)
    for rows, columns, height, width in ((2, 3, 4, 9), (3, 3, 5, 3), (49, 1, 98, 1)):
        x = random(1, 2, rows, columns)
        i, j = (np.arange(size) * old // size for size, old in ((height, rows), (width, columns)))
        np.testing.assert_array_equal(imported(x, random(1, 2, height, width)), x[..., i[:, None], j])


def test_a_slice_of_one_is_broadcast() -> None:
    text = "(float[B, N] x) => (float[B, 3] y) <int64[1] z = {0}, int64[1] o = {1}, float[3] c = {1, 2, 3}> "
    compared(text + "{ s = Slice (x, z, o, o) y = Add (s, c) }", (random(2, 4),), (random(3, 1),))


def test_axes_of_one_that_nobody_names_are_refused_where_sizes_vary() -> None:
    model = model_of("main (float[N, 1] x) => (float[N] y) { y = Squeeze (x) }")
    with pytest.raises(autocast.errors.UnsupportedError, match=r'dynamic=\{"N": 1\}'):
        autocast.from_onnx(model)
    assert autocast.from_onnx(model, dynamic={"N": 1})(random(1, 1)).shape == ()


#: Anchors of each place: what a head has, over how many places it has.
_PER_PLACE = """(float[A, B] x) => (float[9] y) <int64[1] two = {2}, int64[1] nine = {9}> {
    a = Shape <start = 0, end = 1> (x)
    b = Shape <start = 1, end = 2> (x)
    half = Div (b, two)
    places = Mul (a, half)
    more = Add (places, b)
    every = Mul (more, nine)
    each = Div (every, more)
    left = Mod (every, more)
    count = Add (each, left)
    y = ConstantOfShape (count)
}"""

#: Widths of padding as torch's exporter writes them: from the last axis on, in pairs that are turned around.
_TURNED = """(float[3, H] x, float[P] p) => (float[3, K] y) <int64[1] zero = {0}, int64[1] minus = {-1},
    int64[1] end = {-9223372036854775807}, int64[2] pairs = {-1, 2}, float four = {4}> {
    MISSING
    widths = Concat <axis = 0> (zero, missing, zero, zero)
    rows = Reshape (widths, pairs)
    turned = Slice (rows, minus, end, zero, minus)
    columns = Transpose <perm = [1, 0]> (turned)
    flat = Reshape (columns, minus)
    given = Cast <to = 7> (flat)
    y = Pad (x, given)
}"""

#: To the next multiple of 4 of the longest of one, and as many as there are numbers but 0.
_MULTIPLE = """
    size = Shape <start = 1, end = 2> (x)
    longest = ReduceMax (size, zero)
    asfloat = Cast <to = 1> (longest)
    parts = Div (asfloat, four)
    whole = Ceil (parts)
    long = Mul (whole, four)
    wanted = Cast <to = 7> (long)
    missing = Sub (wanted, size)
"""
_FOUND = "found = NonZero (p) missing = Shape <start = 1, end = 2> (found)"
_COUNTED = "truth = Cast <to = 9> (p) ones = Cast <to = 7> (truth) missing = ReduceSum (ones, zero)"


def _sizes(text: str) -> str:
    return str(autocast.from_onnx(model_of(f"main {text}")).mod["main"].body.body.ty)


def test_a_quotient_of_a_multiple_is_a_number() -> None:
    assert "(9,)" in _sizes(_PER_PLACE)
    compared(_PER_PLACE, (random(3, 5),))


@pytest.mark.parametrize("missing", [_MULTIPLE, _FOUND, _COUNTED])
def test_widths_of_padding_are_known_wherever_they_were_moved(missing: str) -> None:
    text = _TURNED.replace("MISSING", missing)
    assert "(3, " in _sizes(text) and ("added" in _sizes(text)) == (missing is _COUNTED)
    compared(text, (random(3, 5), random(4)), (random(3, 8), np.zeros(2, "float32")))
