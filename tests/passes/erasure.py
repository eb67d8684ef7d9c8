"""Erasing casts, independently of the pass: a module rebuilt in float32, with no cast between float32 and `amp`.

Renamings, tuples and projections are looked through, and blocks are joined, so that two modules that differ in nothing
but casts are structurally equal afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

_Constant = type(relax.const(1.0))


def in_float32(type: Any, amp: str) -> Any:
    """A type with all its tensors of the AMP dtype in float32."""
    if isinstance(type, tvm.ir.TupleType):
        return tvm.ir.TupleType([in_float32(field, amp) for field in type.fields])
    if isinstance(type, relax.TensorType) and str(type.dtype) == amp:
        return relax.TensorType(type.shape, "float32")
    return type


class _Eraser:
    """Rebuilds one function; `values` maps each old variable to a variable, a literal, or a list of such."""

    def __init__(self, amp: str) -> None:
        self.amp = amp
        self.builder = relax.BlockBuilder()
        self.values: dict[relax.Var, Any] = {}
        self.bindings: list[relax.Binding] = []

    def function(self, function: relax.Function) -> relax.Function:
        params = [relax.Var(param.name, in_float32(param.ty, self.amp)) for param in function.params]
        self.builder.begin_scope(params)
        for old, new in zip(function.params, params, strict=True):
            self.values[old] = self.fields(new)
        projections, self.bindings = self.bindings, []
        body = self.sequence(function.body)
        self.builder.end_scope()
        body = relax.SeqExpr([relax.BindingBlock([*projections, *body.blocks[0].bindings])], body.body)
        return relax.Function(params, self.builder.normalize(body), None, function.is_pure, function.attrs)

    def sequence(self, sequence: relax.SeqExpr) -> relax.SeqExpr:
        outside, self.bindings = self.bindings, []
        for block in sequence.blocks:
            for binding in block.bindings:
                self.values[binding.var] = self.value(binding.var, binding.value)
        body = _packed(self.look(sequence.body))
        inside, self.bindings = self.bindings, outside
        return relax.SeqExpr([relax.BindingBlock(inside)], body)

    def value(self, var: relax.Var, value: relax.Expr) -> Any:
        if isinstance(value, relax.If):
            condition = _packed(self.look(value.cond))
            branches = [self.sequence(branch) for branch in (value.true_branch, value.false_branch)]
            return self.bind(relax.If(condition, *branches), in_float32(var.ty, self.amp))
        if not isinstance(value, relax.Call):
            return self.look(value)
        args = [self.look(arg) for arg in value.args]
        attrs = value.attrs
        if isinstance(value.op, tvm.ir.Op) and value.op.name == "relax.astype":
            if str(value.args[0].ty.dtype) in ("float32", self.amp) and str(attrs.dtype) in ("float32", self.amp):
                return args[0]
        elif isinstance(value.op, tvm.ir.Op) and value.op.name == "relax.matmul":
            attrs = relax.op.matmul(relax.const(np.eye(1)), relax.const(np.eye(1))).attrs
        call = self.builder.normalize(relax.Call(value.op, list(map(_packed, args)), attrs, value.ty_args))
        return self.bind(call, call.ty)

    def bind(self, value: relax.Expr, type: Any) -> Any:
        new = relax.Var("value", type)
        self.bindings.append(relax.VarBinding(new, value))
        return self.fields(new)

    def fields(self, var: relax.Var) -> Any:
        """A variable, or the projections of one that is a tuple."""
        if not isinstance(var.ty, tvm.ir.TupleType):
            return var
        return [self.bind(relax.TupleGetItem(var, at), field) for at, field in enumerate(var.ty.fields)]

    def look(self, expr: relax.Expr) -> Any:
        if isinstance(expr, relax.Var):
            return self.values[expr]
        if isinstance(expr, relax.Tuple):
            return [self.look(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self.look(expr.tuple_value)[expr.index]
        if isinstance(expr, _Constant) and str(expr.ty.dtype) in ("float32", self.amp):
            with np.errstate(over="ignore"):
                return relax.const(expr.value.numpy().astype(self.amp).astype("float32"), "float32")
        return expr


def _packed(value: Any) -> relax.Expr:
    return relax.Tuple([_packed(part) for part in value]) if isinstance(value, list) else value


def erase(mod: tvm.IRModule, amp: str) -> tvm.IRModule:
    """The module in float32, without casts between float32 and `amp`."""
    functions = {global_var: _Eraser(amp).function(function) for global_var, function in mod.functions.items()}
    return tvm.IRModule(functions, attrs=mod.attrs)
