"""Functions that share no variables."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from autocast.ir.nodes import typed_call, variable


def with_new_variables(function: relax.Function) -> relax.Function:
    """A function like `function`, with other variables and symbolic sizes: the functions of a module share none.

    TVM's own `copy_with_new_vars` asks TVM for the type of each call in a size, and there is none of `T.if_then_else`:
    such a size has a slice whose begin is known at run time.
    """
    return _Copier().expr(function)


class _Copier:
    """Makes nodes again, of new variables and with their types as they are."""

    def __init__(self) -> None:
        self.new: dict[relax.Var, relax.Var] = {}

    def var(self, var: relax.Var) -> relax.Var:
        if var not in self.new:
            self.new[var] = variable(type(var), var.name, self.type(var.ty), var.span)
        return self.new[var]

    def expr(self, expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            return self.var(expr)
        if isinstance(expr, relax.Call):
            types = [self.type(type) for type in expr.ty_args]
            return typed_call(self.type(expr.ty), self.expr(expr.op), self.exprs(expr.args), expr.attrs, types)
        if isinstance(expr.ty, tvm.ir.PrimType):
            return self.number(expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple(self.exprs(expr.fields), expr.span)
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self.expr(expr.tuple_value), expr.index, expr.span)
        if isinstance(expr, relax.ShapeExpr):
            return relax.ShapeExpr(self.exprs(expr.values), expr.span)
        if isinstance(expr, relax.If):
            branches = self.exprs((expr.cond, expr.true_branch, expr.false_branch))
            return self.typed_like(expr, relax.If(*branches, expr.span))
        if isinstance(expr, relax.SeqExpr):
            blocks = [self.block(block) for block in expr.blocks]
            return self.typed_like(expr, relax.SeqExpr(blocks, self.expr(expr.body), expr.span))
        if isinstance(expr, relax.Function):
            params, body, result = self.exprs(expr.params), self.expr(expr.body), self.type(expr.ret_ty)
            return relax.Function(params, body, result, expr.is_pure, expr.attrs, expr.span)
        return expr

    def exprs(self, exprs: Any) -> list[Any]:
        return [self.expr(expr) for expr in exprs]

    def typed_like(self, old: relax.Expr, new: relax.Expr) -> relax.Expr:
        relax.expr._update_type(new, self.type(old.ty))
        return new

    def number(self, number: Any) -> Any:
        """A size, or another number that is computed of numbers."""
        if isinstance(number, tirx.Cast):
            return tirx.Cast(number.ty, self.expr(number.value))
        if isinstance(number, tirx.Select):
            return tirx.Select(*self.exprs((number.condition, number.true_value, number.false_value)))
        if isinstance(number, tirx.Not):
            return tirx.Not(self.expr(number.a))
        return type(number)(self.expr(number.a), self.expr(number.b)) if hasattr(number, "b") else number

    def block(self, block: relax.BindingBlock) -> relax.BindingBlock:
        return type(block)([self.binding(binding) for binding in block.bindings], block.span)

    def binding(self, binding: relax.Binding) -> relax.Binding:
        value = self.expr(binding.value)
        if isinstance(binding, relax.MatchCast):
            return relax.MatchCast(self.var(binding.var), value, self.type(binding.ty), binding.span)
        return relax.VarBinding(self.var(binding.var), value, binding.span)

    def type(self, type: tvm.ir.Type) -> tvm.ir.Type:
        if isinstance(type, relax.TensorType) and type.shape is not None:
            return relax.TensorType(self.expr(type.shape), type.dtype, vdevice=type.vdevice)
        if isinstance(type, relax.ShapeType) and type.values is not None:
            return relax.ShapeType(self.exprs(type.values))
        if isinstance(type, tvm.ir.TupleType):
            return tvm.ir.TupleType([self.type(field) for field in type.fields])
        if isinstance(type, relax.FuncType) and type.params is not None:
            return relax.FuncType([self.type(param) for param in type.params], self.type(type.ret), type.purity)
        return type
