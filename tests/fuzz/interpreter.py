"""Evaluates a Relax module with numpy in float64, every tensor with an error bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tests.fuzz.operators import OPERATORS, Unknown
from tests.fuzz.values import Tensor

#: Interpreted values: Tensor, tuple of values, Shape, int or float, Closure.
Value = Any


class Shape(tuple[int, ...]):
    """The value of a shape."""


@dataclass(frozen=True)
class Closure:
    """A function with the values of the variables around it."""

    function: relax.Function
    scope: Scope


@dataclass
class Scope:
    """The values of variables, and of the sizes that are known when the module runs."""

    values: dict[relax.Var, Value]
    sizes: dict[tirx.Var, int]

    def inner(self) -> Scope:
        """A scope that sees this one and does not change it."""
        return Scope(dict(self.values), dict(self.sizes))


#: TVM has no name for it.
_Constant = type(relax.const(1.0))
_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.FloorDiv: lambda a, b: a // b,
    tirx.FloorMod: lambda a, b: a % b,
    tirx.Min: min,
    tirx.Max: max,
}


class Interpreter:
    """Evaluates functions of a module.

    Parameters
    ----------
    mod
        A well-formed module.
    amp
        The dtype that AutoCast may round float32 tensors to; None for a module that is compiled as it is.
    """

    def __init__(self, mod: tvm.IRModule, amp: str | None = None) -> None:
        self.mod, self.amp = mod, amp

    def main(self, arguments: Sequence[Value]) -> Value:
        """The result of `main`."""
        return self.call(Closure(self.mod["main"], Scope({}, {})), list(arguments))

    def stored(self, tensor: Tensor) -> Tensor:
        """A tensor from outside, which may be rounded before it is read."""
        return tensor.rounded(self.amp, 0) if self.amp else tensor

    def call(self, closure: Closure, arguments: Sequence[Value]) -> Value:
        scope = closure.scope.inner()
        for param, value in zip(closure.function.params, arguments, strict=True):
            self.bind(param, value, scope)
        return self.evaluate(closure.function.body, scope)

    def bind(self, var: relax.Var, value: Value, scope: Scope) -> None:
        scope.values[var] = value
        self.match(var.ty, value, scope)

    def match(self, type_: tvm.ir.Type, value: Value, scope: Scope) -> None:
        """Learn sizes from a value of this type, or check them."""
        if isinstance(type_, tvm.ir.TupleType):
            for field, part in zip(type_.fields, value, strict=True):
                self.match(field, part, scope)
            return
        dims: Sequence[Any] | None = None
        if isinstance(type_, relax.TensorType) and isinstance(type_.shape, relax.ShapeExpr):
            dims, sizes = type_.shape.values, value.shape
        elif isinstance(type_, relax.ShapeType) and type_.values is not None:
            dims, sizes = type_.values, value
        if dims is None:
            return
        for dim, size in zip(dims, sizes, strict=True):
            if isinstance(dim, tirx.Var) and dim not in scope.sizes:
                scope.sizes[dim] = int(size)
            elif (known := self.size(dim, scope, None)) is not None and known != size:
                raise Unknown(f"a size is {size}, its type says {dim} = {known}")

    def size(self, expr: Any, scope: Scope, default: Any = Unknown) -> Any:
        """The value of a size."""
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return expr.value
        if isinstance(expr, tirx.Var):
            if expr in scope.sizes:
                return scope.sizes[expr]
        elif type(expr) in _ARITHMETIC:
            a, b = self.size(expr.a, scope, default), self.size(expr.b, scope, default)
            return default if a is default or b is default else _ARITHMETIC[type(expr)](a, b)
        elif isinstance(expr, tirx.Cast):
            return self.size(expr.value, scope, default)
        if default is Unknown:
            raise Unknown(f"the size {expr}")
        return default

    def evaluate(self, expr: relax.Expr, scope: Scope) -> Value:
        if isinstance(expr, relax.SeqExpr):
            for block in expr.blocks:
                for binding in block.bindings:
                    self.bind_one(binding, scope)
            return self.evaluate(expr.body, scope)
        if isinstance(expr, relax.Function):
            return Closure(expr, scope)
        if isinstance(expr, relax.Var):
            return scope.values[expr] if expr in scope.values else self.size(expr, scope)
        if isinstance(expr, _Constant):
            return self.stored(Tensor.exact(expr.value.numpy(), str(expr.value.dtype)))
        if isinstance(expr, relax.Tuple):
            return tuple(self.evaluate(field, scope) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self.evaluate(expr.tuple_value, scope)[expr.index]
        if isinstance(expr, relax.ShapeExpr):
            return Shape(self.size(dim, scope) for dim in expr.values)
        if isinstance(expr, tvm.ir.GlobalVar):
            return Closure(self.mod[expr], Scope({}, {}))
        if isinstance(expr, relax.If):
            return self.choose(expr, scope)
        if isinstance(expr, relax.Call):
            return self.apply(expr, scope)
        return self.size(expr, scope)

    def bind_one(self, binding: relax.Binding, scope: Scope) -> None:
        if isinstance(binding, relax.MatchCast):
            value = self.evaluate(binding.value, scope)
            self.match(binding.ty, value, scope)
            self.bind(binding.var, value, scope)
        elif isinstance(binding.value, relax.Function):  # which may call itself
            closure = Closure(binding.value, scope)
            scope.values[binding.var] = closure
        else:
            self.bind(binding.var, self.evaluate(binding.value, scope), scope)

    def choose(self, expr: relax.If, scope: Scope) -> Value:
        condition = self.evaluate(expr.cond, scope)
        if isinstance(condition, Tensor) and condition.error.any():
            raise Unknown("a condition that rounding may change")
        taken = bool(condition.value if isinstance(condition, Tensor) else condition)
        return self.evaluate(expr.true_branch if taken else expr.false_branch, scope.inner())

    def apply(self, call: relax.Call, scope: Scope) -> Value:
        arguments = [self.evaluate(argument, scope) for argument in call.args]
        if not isinstance(call.op, tvm.ir.Op):
            callee = self.evaluate(call.op, scope)
            return self.call(callee, arguments)
        name = call.op.name
        if name == "relax.call_tir" and call.args[0].name_hint.startswith("double"):
            (x,) = arguments[1]
            return self.stored(Tensor.of(2 * x.value, 2 * x.error, x.dtype))
        if name == "relax.invoke_closure" or name == "relax.invoke_pure_closure":
            return self.call(arguments[0], list(arguments[1]))
        if name not in OPERATORS:
            raise Unknown(f"the operator {name}")
        with np.errstate(all="ignore"):
            return OPERATORS[name](call, self.amp, *arguments)
