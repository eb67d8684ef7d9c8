"""Expressions of sizes, for many combinations of sizes at once: columns of them, by their names."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

Columns = Mapping[str, np.ndarray]

#: No product may be larger: int64 holds it.
_LARGEST = 2.0**62


class NotInColumns(Exception):
    """An expression has a part that is not computed in columns, or that has no value in some row."""


def _product(left: Any, right: Any) -> Any:
    if float(np.max(np.abs(left), initial=0)) * float(np.max(np.abs(right), initial=0)) > _LARGEST:
        raise NotInColumns
    return left * right


def _divided(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def divide(left: Any, right: Any) -> Any:
        if np.any(np.equal(right, 0)):
            raise NotInColumns
        return function(left, right)

    return divide


_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _product,
    ast.FloorDiv: _divided(operator.floordiv),
    ast.Mod: _divided(operator.mod),
}
_UNARY: Mapping[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: np.logical_not}
_COMPARISONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_LOGICAL: Mapping[type, Callable[[Any, Any], Any]] = {ast.And: np.logical_and, ast.Or: np.logical_or}
_FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {"min": np.minimum, "max": np.maximum}


def computed(node: ast.expr, columns: Columns) -> Any:
    """What Python's expression is in each row: integers, or truth values.

    Raises
    ------
    NotInColumns
        It has functions or floating-point numbers, is too large for int64, or divides by 0 in some row.
    """
    kind = type(getattr(node, "op", None))
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return np.int64(node.value)
    if isinstance(node, ast.Name) and node.id in columns:
        return columns[node.id]
    if isinstance(node, ast.BinOp) and kind in _BINARY:
        return _BINARY[kind](computed(node.left, columns), computed(node.right, columns))
    if isinstance(node, ast.UnaryOp) and kind in _UNARY:
        return _UNARY[kind](computed(node.operand, columns))
    if isinstance(node, ast.BoolOp):
        return reduce(_LOGICAL[kind], (computed(value, columns) for value in node.values))
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _FUNCTIONS and not node.keywords:
        return reduce(_FUNCTIONS[node.func.id], (computed(value, columns) for value in node.args))  # type: ignore[attr-defined]
    if isinstance(node, ast.Compare) and all(type(one) in _COMPARISONS for one in node.ops):
        values = pairwise(computed(value, columns) for value in (node.left, *node.comparators))
        pairs = zip(node.ops, values, strict=True)
        return reduce(np.logical_and, (_COMPARISONS[type(one)](*pair) for one, pair in pairs))
    raise NotInColumns
