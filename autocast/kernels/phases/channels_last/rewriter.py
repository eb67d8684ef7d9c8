"""Values that exist with their channels last, and those that exist in both orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import dims, is_tensor, shape_of
from autocast.ir.rewriting import BindingRewriter, users_of
from autocast.kernels.matching.convolutions.declined import declined, has_kernel
from autocast.kernels.phases.channels_last.axes import is_one, moved_back, order, with_channels_last
from autocast.operators import Kind, is_kind

#: A new value, and whether it is the old one with axis 1 moved to the end; None: the binding stays as it is.
Answer: TypeAlias = tuple[relax.Expr, bool] | None

#: Answers for a call, or for a field that is taken out of a tuple.
Behaviour: TypeAlias = Callable[["ChannelsLast", Any], Answer]


@mutator
class ChannelsLast(BindingRewriter):
    """Applies the rule that `rule_of` has for what is bound, if it has one.

    `last` holds the variables that exist as (N, H, W, C), and `first` those of them that exist as they were too.
    """

    def __init__(self, mod: tvm.IRModule, rule_of: Callable[[relax.Expr], Behaviour | None]) -> None:
        super().__init__(mod)
        self.rule_of = rule_of

    def enter(self, function: relax.Function) -> None:
        bound, _ = users_of(function)
        convolutions = [value for value in bound.values() if is_kind(value, Kind.CONVOLUTION)]
        self.active = any(map(has_kernel, bound.values())) or any(declined(call) is None for call in convolutions)
        self.last: dict[relax.Var, relax.Expr] = {}
        self.first: dict[relax.Var, relax.Expr] = {}

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        rule = self.rule_of(binding.value) if self.active else None
        answer = None if rule is None else rule(self, binding.value)
        if answer is None or not answer[1]:
            return answer and answer[0]
        value = answer[0] if isinstance(answer[0], relax.Var) else self.emit(answer[0], binding.var.name)
        self.last[binding.var] = value
        return value if isinstance(binding.var, relax.DataflowVar) else moved_back(value)

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        result = super().visit_dataflow_block_(block)
        self.last.clear()  # a block's inner variables are not known outside
        return result

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        if var not in self.last:
            return super().visit_dataflow_var_(var)
        if var not in self.first:
            self.first[var] = self.emit(moved_back(self.last[var]))
        return self.first[var]

    def is_last(self, expr: relax.Expr) -> bool:
        """Whether `expr` exists with its channels last, or is a tuple of which a field does."""
        if isinstance(expr, relax.Tuple):
            return any(map(self.is_last, expr.fields))
        return isinstance(expr, relax.Var) and expr in self.last

    def moved(self, expr: relax.Expr) -> relax.Expr:
        """`expr` (or the fields of a tuple) with axis 1 at the end."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.moved(field) for field in expr.fields])
        if not self.is_last(expr):
            value = self.new(expr)
            moved = self.emit(with_channels_last(value))
            if not isinstance(expr, relax.Var):
                return moved
            self.last[expr], self.first[expr] = moved, value
        return self.last[expr]

    def broadcast(self, expr: relax.Expr, rank: int) -> relax.Expr:
        """An operand of elementwise arithmetic in `rank` dimensions, with axis 1 of those at the end.

        Leading ones are dropped: a value for each channel becomes a vector.
        """
        if not is_tensor(expr) or not shape_of(expr):
            return self.new(expr)
        shape = dims(expr)
        padded = (1,) * (rank - len(shape)) + shape
        moved = [padded[axis] for axis in order(rank)]
        while len(moved) > 1 and is_one(moved[0]):
            moved.pop(0)
        if not is_one(padded[1]) and not all(map(is_one, padded[2:])):
            if len(shape) == rank:
                return self.moved(expr)
            value = self.emit(relax.op.reshape(self.new(expr), relax.ShapeExpr(padded)))
            return self.emit(relax.op.permute_dims(value, order(rank)))
        value = self.last[expr] if self.is_last(expr) else self.new(expr)
        return self.emit(relax.op.reshape(value, relax.ShapeExpr(moved)))
