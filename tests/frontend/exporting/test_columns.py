"""Expressions of sizes in columns are what Python computes row by row."""

from __future__ import annotations

import ast

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from autocast.frontend.exporting.columns import NotInColumns, computed
from autocast.frontend.exporting.conditions import Condition

_NUMBERS = st.one_of(st.sampled_from(["n", "m"]), st.integers(-9, 9).map(lambda number: f"({number})"))


def _larger(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(parts, parts)
    arithmetic = st.tuples(pairs, st.sampled_from(["+", "-", "*", "//", "%"])).map(
        lambda one: f"({one[0][0]} {one[1]} {one[0][1]})"
    )
    extremes = st.tuples(pairs, st.sampled_from(["min", "max"])).map(lambda one: f"{one[1]}({one[0][0]}, {one[0][1]})")
    return st.one_of(arithmetic, extremes, parts.map(lambda part: f"(-{part})"))


_SIZES = st.recursive(_NUMBERS, _larger, max_leaves=8)
_COMPARED = st.tuples(_SIZES, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), _SIZES, st.booleans()).map(
    lambda one: f"0 <= {one[0]} {one[1]} {one[2]}" if one[3] else f"{one[0]} {one[1]} {one[2]}"
)
_CONDITIONS = st.tuples(_COMPARED, st.sampled_from(["and", "or"]), _COMPARED).map(
    lambda one: f"({one[0]}) {one[1]} not ({one[2]})"
)


@settings(max_examples=300, deadline=None)
@given(text=st.one_of(_SIZES, _CONDITIONS), n=st.integers(-20, 20), m=st.integers(0, 10**6))
def test_rows_are_what_python_computes(text: str, n: int, m: int) -> None:
    columns = {"n": np.array([n, n + 1, 3]), "m": np.array([m, m, 7])}
    rows = [{name: int(values[row]) for name, values in columns.items()} for row in range(3)]
    try:
        expected = [eval(text, dict(row)) for row in rows]
    except ZeroDivisionError:
        expected = None
    try:
        got = np.broadcast_to(computed(ast.parse(text, mode="eval").body, columns), 3).tolist()
    except NotInColumns:
        assert "/" in text or "%" in text or m > 10**4  # it divides by 0, if only where nobody asks, or is too large
    else:
        assert got == expected


@pytest.mark.parametrize("text", ["n / 2", "f(n)", "n ** 2", "n * 10000000000000 * 10000000", "k", "1.5 * n", "n // 0"])
def test_what_is_not_computed_is_said(text: str) -> None:
    with pytest.raises(NotInColumns):
        computed(ast.parse(text, mode="eval").body, {"n": np.arange(2, 9)})


def test_a_condition_on_no_size_is_one_row() -> None:
    assert Condition(sympy.Integer(3)).evaluated({}).tolist() == [3]
