"""Which tensors the variables of a function hold, through tuples and views."""

from __future__ import annotations

import math
from collections.abc import Iterable

import tvm
from tvm import relax

from autocast.ir import is_op

#: Operators whose result is their first operand, looked at in another way.
VIEWS = ("relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset")

#: One tensor: the variable that is bound to the call that makes it, and which of its results it is.
Tensor = tuple[relax.Var, int]


class Tensors:
    """The tensors of one function; its bindings are told in order.

    Attributes
    ----------
    size : dict of Tensor to int
        Bytes; 0 where a tensor is an argument, or its shape is known at run time only.
    """

    def __init__(self, function: relax.Function) -> None:
        self._held: dict[relax.Var, list[Tensor]] = {param: [(param, 0)] for param in function.params}
        self.size: dict[Tensor, int] = {(param, 0): 0 for param in function.params}

    def bind(self, binding: relax.Binding) -> None:
        """Note what the next binding makes or renames."""
        var, value = binding.var, binding.value
        if is_alias(value):
            self._held[var] = self._renamed(value)
            return
        types = var.ty.fields if isinstance(var.ty, tvm.ir.TupleType) else [var.ty]
        self._held[var] = [(var, i) for i in range(len(types))]
        self.size.update(((var, i), _bytes(ty)) for i, ty in enumerate(types))

    def of(self, expr: relax.Expr) -> list[Tensor]:
        """The tensors that `expr` refers to; a constant is none."""
        if isinstance(expr, relax.Tuple):
            return [tensor for field in expr.fields for tensor in self.of(field)]
        return self._held.get(expr, []) if isinstance(expr, relax.Var) else []

    def _renamed(self, value: relax.Expr) -> list[Tensor]:
        if isinstance(value, relax.TupleGetItem):
            fields = self.of(value.tuple_value)
            flat = len(fields) == len(value.tuple_value.ty.fields)
            return [fields[value.index]] if flat else fields
        return self.of(value.args[0] if isinstance(value, relax.Call) else value)


def is_alias(value: relax.Expr) -> bool:
    """Whether `value` only renames, groups or reshapes tensors, or is none."""
    return not isinstance(value, relax.Call | relax.If) or is_op(value, *VIEWS)


def returned(bindings: Iterable[relax.Binding], result: relax.Expr) -> list[relax.Expr]:
    """The expressions of each tensor that `result`, what a function returns after `bindings`, consists of."""
    values = {binding.var: binding.value for binding in bindings}
    while isinstance(result, relax.Var) and isinstance(values.get(result), relax.Var | relax.Tuple):
        result = values[result]
    return list(result.fields) if isinstance(result, relax.Tuple) else [result]


def _bytes(ty: tvm.ir.Type) -> int:
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return 0
    dims = list(ty.shape.values)
    if any(not isinstance(dim, int | tvm.tirx.IntImm) for dim in dims):
        return 0
    return math.prod(int(dim) for dim in dims) * tvm.DataType(str(ty.dtype)).itemsize
