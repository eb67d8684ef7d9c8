"""Make functions of the branches of `if`."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.ir import relax_functions, with_new_variables


@mutator
class _Outline(PyExprMutator):
    def visit_if_(self, op: relax.If) -> relax.Expr:
        condition = self.visit_expr(op.cond)
        branches = [self.outlined(branch) for branch in (op.true_branch, op.false_branch)]
        return relax.If(condition, *branches, op.span)

    def outlined(self, branch: relax.Expr) -> relax.Expr:
        """A call of a new function that computes `branch`."""
        branch = self.visit_expr(branch)
        # A dimension is no operand: the function takes it from the shapes of its operands, or as a shape of its own.
        operands = [var for var in relax.analysis.free_vars(branch) if not isinstance(var.ty, tvm.ir.PrimType)]
        function = relax.Function(operands, branch, ret_ty=branch.ty, is_pure=True)
        sizes = relax.ShapeExpr(sorted(relax.analysis.free_symbolic_vars(function), key=lambda size: size.name))
        if sizes.values:
            function = relax.Function([*operands, relax.Var("sizes", sizes.ty)], branch, ret_ty=branch.ty, is_pure=True)
            operands = [*operands, sizes]
        function = with_new_variables(function)
        var = self.builder_.add_func(function, "branch")
        result = relax.Var("result", branch.ty)
        return relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, relax.Call(var, operands))])], result)


def outline_branches(mod: tvm.IRModule) -> tvm.IRModule:
    """Move each branch of an `if` to a private function.

    Before::                        After::

        if flag:                        if flag:
            y = R.exp(R.add(x, x))          y = cls.branch(x)
        else:                           else:
            y = R.nn.softmax(x)             y = cls.branch1(x)

    TVM's memory plan shares storage between branches although only one of them allocates it, and its fusion does not
    look into branches; functions are planned and fused one by one.
    """
    outline = _Outline(mod)
    for var, function in relax_functions(mod):
        outline.builder_.update_func(var, outline.visit_expr(function))
    return outline.builder_.get()
