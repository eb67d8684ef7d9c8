"""Bindings a second time, over other variables: what a backward pass computes again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax

from autocast.training.paths import bindings_of, branches_of


def substituted(builder: relax.BlockBuilder, expr: relax.Expr, table: dict[relax.Var, relax.Expr]) -> relax.Expr:
    """The value of a binding over what `table` has for its variables; what its branches bind is added to `table`."""
    if isinstance(expr, relax.Var):
        return table.get(expr, expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([substituted(builder, field, table) for field in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(substituted(builder, expr.tuple_value, table), expr.index)
    if isinstance(expr, relax.Call):
        arguments = [substituted(builder, argument, table) for argument in expr.args]
        return relax.Call(expr.op, arguments, expr.attrs, expr.ty_args)
    if isinstance(expr, relax.If):
        branches = [_copied(builder, branch, table) for branch in branches_of(expr)]
        return relax.If(substituted(builder, expr.cond, table), *branches)
    return expr


def emit_copies(
    builder: relax.BlockBuilder, bindings: Sequence[relax.Binding], table: dict[relax.Var, relax.Expr]
) -> list[relax.Binding]:
    """Emit `bindings` over what `table` has for their variables; the new bindings, whose variables `table` gets."""
    copies = []
    for binding in bindings:
        value = builder.normalize(substituted(builder, binding.value, table))
        if isinstance(binding, relax.MatchCast):
            var = relax.Var(binding.var.name, binding.ty, binding.var.span)
            copies.append(relax.MatchCast(var, value, binding.ty))
        else:
            var = relax.Var(builder.get_unique_name(binding.var.name), value.ty, binding.var.span)
            copies.append(relax.VarBinding(var, value))
        builder.emit_normalized(copies[-1])
        table[binding.var] = var
    return copies


def new_branch(builder: relax.BlockBuilder, build: Callable[[], relax.Expr]) -> relax.SeqExpr:
    """A branch of an `If`: what `build` emits, and its result."""
    builder._begin_binding_block()
    result = build()
    return relax.SeqExpr([builder._end_block()], result)


def _copied(builder: relax.BlockBuilder, branch: relax.SeqExpr, table: dict[relax.Var, relax.Expr]) -> relax.SeqExpr:
    def build() -> relax.Expr:
        emit_copies(builder, bindings_of(branch), table)
        return substituted(builder, branch.body, table)

    return new_branch(builder, build)
