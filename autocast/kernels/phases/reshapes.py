"""Reshapes to sizes that are known at run time: to as many elements as there are."""

from __future__ import annotations

import math

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import all_bindings, is_op, relax_functions, shape_of
from autocast.ir.rewriting import BindingRewriter, rewrite_functions


def check_reshapes(mod: tvm.IRModule) -> tvm.IRModule:
    """Check at run time that a reshape keeps the number of elements, where nobody can know that before.

    Before::                                        After::

        y = R.reshape(x, R.shape([n, 2]))           gv = R.shape([2 * n])
                                                    elements_of_y = R.match_cast(gv, R.Shape([6]))
                                                    y = R.reshape(x, R.shape([n, 2]))

    Kernels read as many elements as the new sizes say.
    """
    values = [binding.value for _, function in relax_functions(mod) for binding in all_bindings(function.body)]
    return rewrite_functions(mod, _Checked) if any(_count(value) is not None for value in values) else mod


def _count(value: relax.Expr) -> tuple[tvm.tirx.Expr, tvm.tirx.Expr] | None:
    """The numbers of elements after and before, where `value` is a reshape and they may differ."""
    if not is_op(value, "relax.reshape"):
        return None
    old, new = shape_of(value.args[0]), shape_of(value)
    if old is None or new is None:
        return None
    after, before = (tvm.tirx.convert(math.prod(shape)).astype("int64") for shape in (new, old))
    return None if tvm.sym.Analyzer().can_prove_equal(after, before) else (after, before)


@mutator
class _Checked(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        counts = _count(binding.value)
        if counts is None:
            return None
        after, before = counts
        elements = self.emit(relax.ShapeExpr([after]))  # a variable: TVM computes no sizes that are matched themselves
        self.builder_.match_cast(elements, relax.ShapeType([before]), f"elements_of_{binding.var.name}")
        return self.visit_expr(binding.value)
