"""Sizes as plain values have the values that TVM gives to the expressions they were read from."""

from __future__ import annotations

import json

import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx

from autocast.runtime.sizes import as_size, bits_of, evaluate, tensor_bytes, text_of
from autocast.vm.dimensions import Dimensions

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")
DIVISIONS = (tirx.floordiv, tirx.floormod, tirx.truncdiv, tirx.truncmod)
BINARY = (*(lambda a, b, op=op: getattr(a, op)(b) for op in ("__add__", "__sub__", "__mul__")), tirx.min, tirx.max)


@st.composite
def expressions(draw, depth=3):
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([N, M, *(tirx.const(number, "int64") for number in (-3, 0, 1, 7))]))
    a, b = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    kind = draw(st.sampled_from(("binary", "division", "select")))
    if kind == "division":
        return draw(st.sampled_from(DIVISIONS))(a, tirx.const(draw(st.sampled_from([-2, 3, 5])), "int64"))
    if kind == "select":
        return tirx.Select(draw(st.sampled_from([a < b, a >= b, tirx.Not(a == b)])), a, b)
    return draw(st.sampled_from(BINARY))(a, b)


@given(expressions(), st.integers(-9, 20), st.integers(-9, 20))
def test_an_expression_of_tir_keeps_its_value_through_json(expr, n, m):
    dimensions = Dimensions()
    names = dimensions.declared([N, M])
    size = as_size(json.loads(json.dumps(dimensions.size(expr))))
    analyzer = tvm.sym.Analyzer()
    for variable, value in ((N, n), (M, m)):
        analyzer.bind(variable, tirx.const(value, "int64"))
    assert evaluate(size, dict(zip(names, (n, m), strict=True))) == int(analyzer.simplify(expr))


def test_variables_of_one_name_get_different_ones():
    other = tirx.Var("n", "int64")
    assert Dimensions().declared([N, other, N, N + other]) == ("n", "n_1", "n", ("+", "n", "n_1"))


def test_names_of_operators_and_of_the_threads_are_not_given_to_sizes():
    names = Dimensions().declared([tirx.Var(name, "int64") for name in ("min", "if", "threads")])
    assert names == ("min_1", "if_1", "threads_1")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (3, "3"),
        ("n", "n"),
        (("*", 2, "n"), "2 * n"),
        (("*", ("+", "n", 1), "m"), "(n + 1) * m"),
        (("min", ("+", "n", 1), 4), "min(n + 1, 4)"),
    ],
)
def test_sizes_are_written_as_formulas(size, text):
    assert text_of(size) == text


def test_what_is_not_known_has_no_value():
    assert evaluate(("+", "n", 1), {}) is None
    assert evaluate(("//", 1, "n"), {"n": 0}) is None
    assert evaluate(None, {}) is None


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("float32", 32), ("bool", 8), ("int4", 4), ("float32x4", 128), ("float8_e4m3fn", 8), ("bfloat16", 16)],
)
def test_bits_of_a_dtype(dtype, bits):
    assert bits_of(dtype) == bits
    assert tensor_bytes((3,), dtype) == -(-3 * bits // 8)
