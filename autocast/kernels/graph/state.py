"""Tell the parameters that a call replaces from those that stay the same."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import dtype_of, is_op
from autocast.kernels.graph.operators import LOW
from autocast.kernels.graph.rewriting import BindingRewriter, rewrite_functions
from autocast.model.value import updates_of

#: The attribute of a `main` whose last inputs are state: how many of them, and of its last results, there are.
NUM_STATE = "num_state"


def num_state(function: relax.Function) -> int:
    """How many of a function's last inputs are state that its last results replace."""
    return int((function.attrs or {}).get(NUM_STATE, 0))


def separate_state(mod: tvm.IRModule) -> tvm.IRModule:
    """Make inputs of the parameters that `main` updates: nothing may be computed from them once and for all.

    Before::                                          After::

        def main(x, w, p):                                def main(x, p, w):
            # num_input = 1, updates = [1]                    # num_input = 2, num_state = 1
            return (y, p1)                                    return (y, p1)

    State stands after the inputs, in the order of the results that replace it.
    """
    if "main" not in [var.name_hint for var in mod.get_global_vars()] or not isinstance(mod["main"], relax.Function):
        return mod
    main = mod["main"]
    updates = updates_of(main)
    if not updates:
        return mod
    inputs = int(main.attrs["num_input"])
    params = list(main.params[inputs:])
    state = [params[position] for position in updates]
    others = [param for position, param in enumerate(params) if position not in updates]
    ordered = [*main.params[:inputs], *state, *others]
    main = relax.Function(ordered, main.body, main.ret_ty, main.is_pure, main.attrs).without_attr("updates")
    mod = tvm.IRModule(mod.functions, attrs=mod.attrs)
    mod["main"] = main.with_attrs({"num_input": inputs + len(state), NUM_STATE: len(state)})
    return mod


def inline_functions(mod: tvm.IRModule) -> tvm.IRModule:
    """Inline the functions that a `main` with state calls.

    An optimizer's update is one, so that AutoCast leaves its precision alone, and no product takes a part of it. It
    becomes one elementwise kernel, with what scales the gradient; what depends on the step alone is computed once.
    """
    if "main" not in [var.name_hint for var in mod.get_global_vars()] or not num_state(mod["main"]):
        return mod
    main = mod["main"]
    values = [binding.value for block in main.body.blocks for binding in block.bindings]
    called = {value.op for value in values if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)}
    mod = tvm.IRModule(mod.functions, attrs=mod.attrs)
    mod["main"] = main.inline_functions({var: mod[var] for var in called if isinstance(mod[var], relax.Function)})
    return tvm.transform.Sequential([relax.transform.EliminateCommonSubexpr(), relax.transform.DeadCodeElimination()])(
        mod
    )


@mutator
class _RepeatCasts(BindingRewriter):
    def enter(self, function: relax.Function) -> None:
        inputs, count = int((function.attrs or {}).get("num_input", 0)), num_state(function)
        self.state = set(function.params[inputs - count : inputs])

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not is_op(call, "relax.matmul") or not any(self.is_narrowed_state(operand) for operand in call.args):
            return None
        operands = [self.repeated(x) if self.is_narrowed_state(x) else self.new(x) for x in call.args]
        return relax.Call(call.op, operands, call.attrs, call.ty_args)

    def is_narrowed_state(self, expr: relax.Expr) -> bool:
        """Whether `expr` is state, narrowed and perhaps transposed."""
        if dtype_of(expr) not in LOW:
            return False
        while expr in self.values and is_op(self.values[expr], "relax.astype", "relax.permute_dims"):
            expr = self.values[expr].args[0]
        return expr in self.state

    def repeated(self, expr: relax.Expr) -> relax.Expr:
        """`expr`, computed once more."""
        if expr in self.state:
            return expr
        value = self.values[expr]
        return self.emit(relax.Call(value.op, [self.repeated(value.args[0])], value.attrs, value.ty_args))


def repeat_casts(mod: tvm.IRModule) -> tvm.IRModule:
    """Narrow state once for each product that reads it: a product narrows while it packs, a copy would have to be kept.

    Before::                                          After::

        b = R.astype(p, "bfloat16")                       b = R.astype(p, "bfloat16")
        y = R.matmul(x, b)                                y = R.matmul(x, b)
        d = R.matmul(g, R.permute_dims(b))                c = R.astype(p, "bfloat16")
                                                          d = R.matmul(g, R.permute_dims(c))
    """
    return rewrite_functions(mod, _RepeatCasts)
