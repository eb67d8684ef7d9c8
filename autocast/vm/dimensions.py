"""Sizes of TIR as plain values: see `autocast.runtime.sizes`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import tirx

from autocast.ir import is_op
from autocast.runtime.program import THREADS
from autocast.runtime.sizes import OPERATORS, Size, computed

#: What nodes of TIR compute. Sizes are whole numbers, so conversions between integers do nothing.
_BINARY = {
    tirx.Add: "+",
    tirx.Sub: "-",
    tirx.Mul: "*",
    tirx.FloorDiv: "//",
    tirx.FloorMod: "%",
    tirx.Div: "quotient",
    tirx.Mod: "remainder",
    tirx.Min: "min",
    tirx.Max: "max",
    tirx.LT: "<",
    tirx.LE: "<=",
    tirx.EQ: "==",
    tirx.NE: "!=",
    tirx.And: "and",
    tirx.Or: "or",
    tirx.LShift: "<<",
    tirx.RShift: ">>",
}
_REVERSED = {tirx.GT: "<", tirx.GE: "<="}
_IF = "tirx.if_then_else"


class Dimensions:
    """The sizes of one function, with a name of its own for each variable."""

    def __init__(self) -> None:
        self._known: dict[tirx.Var, Size] = {}
        self._taken = {*OPERATORS, THREADS}

    def declare(self, var: tirx.Var, size: Size | None = None) -> Size:
        """Give a variable a name, if it has none, or the size that it stands for."""
        if size is not None:
            self._known[var] = size
        elif var not in self._known:
            name, count = str(var.name), 1
            while name in self._taken:
                name, count = f"{var.name}_{count}", count + 1
            self._taken.add(name)
            self._known[var] = name
        return self._known[var]

    def shape(self, dimensions: Iterable[object]) -> tuple[Size, ...] | None:
        """The sizes of a tensor that is computed; None where one of them depends on data."""
        sizes = tuple(map(self.size, dimensions))
        return None if None in sizes else sizes  # type: ignore[return-value]

    def declared(self, dimensions: Iterable[object]) -> tuple[Size, ...]:
        """The shape of what is taken, whose variables get names; what is written in no known way never fits."""
        shape: list[Size] = []
        for dimension in dimensions:
            for variable in () if isinstance(dimension, int) else tirx.analysis.undefined_vars(dimension):
                self.declare(variable)
            size = self.size(dimension)
            shape.append(("+", str(dimension), 0) if size is None else size)
        return tuple(shape)

    def size(self, expr: Any) -> Size | None:
        """One size; None where it is not computed of declared variables and numbers alone."""
        if isinstance(expr, int | tirx.IntImm):
            return int(expr)
        if isinstance(expr, tirx.Var):
            return self._known.get(expr)
        if isinstance(expr, tirx.Cast):
            return self.size(expr.value)
        if type(expr) in _BINARY:
            return self._computed(_BINARY[type(expr)], expr.a, expr.b)
        if type(expr) in _REVERSED:
            return self._computed(_REVERSED[type(expr)], expr.b, expr.a)
        if isinstance(expr, tirx.Not):
            return self._computed("not", expr.a)
        if isinstance(expr, tirx.Select):
            return self._computed("if", expr.condition, expr.true_value, expr.false_value)
        return self._computed("if", *expr.args) if is_op(expr, _IF) else None

    def _computed(self, name: str, *operands: object) -> Size | None:
        sizes = tuple(map(self.size, operands))
        return None if None in sizes else computed(name, *sizes)  # type: ignore[arg-type]
