"""Sizes of the IR as numbers of a graph: what is known stays a number, the rest is read off the inputs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import tvm
from tvm import relax, tirx

from autocast.errors import UnsupportedError
from autocast.ir import items
from autocast.torch_target.asked import Value


def _least(a: Value, b: Value) -> Value:
    return torch.sym_min(a, b)


def _largest(a: Value, b: Value) -> Value:
    return torch.sym_max(a, b)


def _rest(a: Value, b: Value) -> Value:
    """Of a division by 0 it is 0: rows of which there are none are rolled, say."""
    return operator.mod(a, b if isinstance(b, int) else torch.sym_max(b, 1))


_ARITHMETIC: dict[type, Callable[[Value, Value], Value]] = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.FloorDiv: operator.floordiv,
    tirx.FloorMod: _rest,
    tirx.Min: _least,
    tirx.Max: _largest,
}


class Sizes:
    """The values of symbolic sizes in one function; `known` are those that are numbers from the start."""

    def __init__(self, known: Mapping[tirx.Var, int] | None = None) -> None:
        self._known: dict[tirx.Var, Callable[[], Value]] = {
            var: partial(int, size) for var, size in (known or {}).items()
        }

    def learn(self, type_: Any, value: Value) -> None:
        """Read the sizes that a type names off a value of it, when they are first needed."""
        if isinstance(type_, relax.ShapeType) and type_.values is not None:
            for position, dim in enumerate(items(type_.values)):
                self._learn(dim, partial(operator.getitem, value, position))
        elif isinstance(type_, relax.TensorType) and isinstance(type_.shape, relax.ShapeExpr):
            for axis, dim in enumerate(items(type_.shape.values)):
                self._learn(dim, partial(value.size, axis))
        elif hasattr(type_, "fields"):
            for position, field in enumerate(type_.fields):
                self.learn(field, value[position])

    def knows(self, size: tirx.Var) -> bool:
        """Whether a size has a value."""
        return size in self._known

    def _learn(self, dim: Any, read: Callable[[], Value]) -> None:
        if isinstance(dim, tirx.Var) and dim not in self._known:
            self._known[dim] = read

    def __call__(self, expr: Any) -> Value:
        """The value of a size, or of several."""
        if isinstance(expr, int | float):
            return expr
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return expr.value
        if isinstance(expr, tirx.Var):
            if expr not in self._known:
                raise UnsupportedError(
                    f"to_torch: nothing says the size {expr.name}; expected it in the type of an input, or in a "
                    "match_cast before its use"
                )
            read = self._known[expr]
            value = read()
            self._known[expr] = lambda: value
            return value
        if type(expr) in _ARITHMETIC:
            return _ARITHMETIC[type(expr)](self(expr.a), self(expr.b))
        if isinstance(expr, tirx.Cast):
            return self(expr.value)
        if isinstance(expr, tvm.ir.Call) and expr.op.name == "prim.if_then_else" and isinstance(expr.args[0], tirx.LE):
            at_most, then, otherwise = expr.args
            return self(otherwise + (then - otherwise) * tirx.max(tirx.min(at_most.b - at_most.a + 1, 1), 0))
        if isinstance(expr, relax.ShapeExpr | Sequence) or hasattr(expr, "__len__"):
            return tuple(map(self, getattr(expr, "values", expr)))
        raise UnsupportedError(
            f"to_torch: the size {expr} is a {type(expr).__name__}, expected sums, products and quotients"
        )
