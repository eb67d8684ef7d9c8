"""Sums that are kept in bfloat16 with stochastic rounding, where a policy says so.

`accumulation="bf16sr"`, of each product of bfloat16 operands, whatever dtype its result has::

    y: f32 = R.matmul(x, w, out_dtype="float32")       p: f32 = R.matmul(x, w, out_dtype="float32")
                                                       s: bf16 = R.nn.stochastic_round(p, state, stream=0)
                                                       y: f32 = R.astype(s, "float32")

`weight_gradients="bf16sr"`, of each gradient that a matrix product computes and an update adds to a parameter, so of
the weights of linear layers; and of each parameter that is stored in bfloat16 alone::

    u = sgd(w, g, rate)                                s: bf16 = R.nn.stochastic_round(g, state, stream=1)
    new: bf16 = R.astype(u[0], "bfloat16")             u = sgd(w, R.astype(s, "float32"), rate)
                                                       new: bf16 = R.nn.stochastic_round(u[0], state, stream=2)

Where several processes train together it is rounded before it is sent, and sent in the dtype that the casts chose::

    s: uint8 = R.collective.all_reduce_start((g,))     r: bf16 = R.nn.stochastic_round(g, state, stream=1)
                                                       s: uint8 = R.collective.all_reduce_start((R.astype(r, ...),))

`state` is (0, steps taken): a training step counts them, and its checkpoints hold the count, so a run that is resumed
rounds as it would have. A module that counts nothing rounds the same at each call. Each call has a stream of its own,
away from those of dropout.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import all_bindings, dtype_of, identity, is_op, relax_functions, with_functions
from autocast.ir.places import PlacedMutator
from autocast.model.step import GRADIENT, STEP, updated_by
from autocast.operators.own import stochastic_round
from autocast.passes.casting.results import has_out_dtype, with_out_dtype
from autocast.policy import Policy
from autocast.policy.facts import moves_data

op = relax.op

#: Streams of random numbers from here on are those of this pass: dropout counts its own from 0.
_FIRST_STREAM = 1 << 20


def round_stochastically(mod: tvm.IRModule, policy: Policy) -> tvm.IRModule:
    """The module, which has its casts, with the sums of `policy` rounded stochastically; itself where there are none.

    What is rounded so already stays as it is.
    """
    if policy.accumulation == policy.weight_gradients == "fp32":
        return mod
    rounding = _Rounding(mod, policy)
    return with_functions(mod, {var: rounding.function(function) for var, function in relax_functions(mod)})


@mutator
class _Rounding(PlacedMutator):
    def __init__(self, mod: tvm.IRModule, policy: Policy) -> None:
        super().__init__(mod)
        self.mod = mod
        self.rounds_products = policy.accumulation == "bf16sr"
        self.rounds_gradients = policy.weight_gradients == "bf16sr"
        self.streams = _FIRST_STREAM
        self.step: relax.Var | None = None
        self.state: relax.Expr | None = None
        self.is_done = False
        self.done: set[int] = set()

    def function(self, function: relax.Function) -> relax.Function:
        """`function` with its sums rounded."""
        self.step = next((param for param in function.params if param.name == STEP), None)
        calls = [binding.value for binding in all_bindings(function.body)]
        roundings = [call for call in calls if is_op(call, "relax.nn.stochastic_round")]
        self.done = {identity(call.args[0]) for call in roundings}
        self.streams += len(roundings)
        return self.visit_expr(function)

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        """The state is bound once in each block that rounds."""
        outside, self.state = self.state, None
        block = super().visit_binding_block_(block)
        self.state = outside
        return block

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        """As in other blocks."""
        outside, self.state = self.state, None
        block = super().visit_dataflow_block_(block)
        self.state = outside
        return block

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Note whether the value is rounded stochastically already."""
        self.is_done = identity(binding.var) in self.done
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        new, dtype = super().visit_call_(call), dtype_of(call)
        if self.is_done:
            return new
        if self.rounds_products and has_out_dtype(call) and dtype_of(call.args[0]) == "bfloat16":
            attrs = with_out_dtype(new, "float32")
            rounded = self.rounded(self.emit(relax.Call(new.op, new.args, attrs, new.ty_args)))
            return rounded if dtype == "bfloat16" else op.astype(self.emit(rounded), dtype)
        if not self.rounds_gradients:
            return new
        if is_op(call, "relax.astype") and dtype == "bfloat16" and self.is_new_parameter(new.args[0]):
            return self.rounded(new.args[0])
        if is_op(call, "relax.collective.all_reduce_start", "relax.collective.reduce_scatter_start"):
            return relax.Call(new.op, [relax.Tuple([self.sent(part) for part in new.args[0].fields])], new.attrs)
        place = updated_by(call, self.mod).get(GRADIENT)
        if place is None or not self.is_product(new.args[place]):
            return new
        args = list(new.args)
        args[place] = self.emit(op.astype(self.emit(self.rounded(args[place])), "float32"))
        return relax.Call(new.op, args, new.attrs, new.ty_args)

    def sent(self, part: relax.Expr) -> relax.Expr:
        """What is sent of a gradient, in the dtype that it is sent in."""
        if not self.is_product(part):
            return part
        if dtype_of(part) == "bfloat16":
            return self.emit(self.rounded(self.unrounded(part)))
        return self.emit(op.astype(self.emit(self.rounded(part)), "float32"))

    def unrounded(self, value: relax.Expr) -> relax.Expr:
        """The sums in float32 that `value`, which a product computes, was rounded from to the nearest."""
        call = self.lookup_binding(value)
        if dtype_of(value) == "float32" or is_op(call, "relax.astype"):
            return value if dtype_of(value) == "float32" else self.unrounded(call.args[0])
        if is_op(call, "relax.matmul"):
            return self.emit(relax.Call(call.op, call.args, with_out_dtype(call, "float32"), call.ty_args))
        if is_op(call, "relax.add"):
            return self.emit(op.add(*map(self.unrounded, call.args)))
        if moves_data(call):
            return self.emit(relax.Call(call.op, [self.unrounded(call.args[0]), *call.args[1:]], call.attrs))
        return self.emit(op.astype(value, "float32"))

    def rounded(self, value: relax.Expr) -> relax.Call:
        """`value` in bfloat16, from a stream of its own."""
        if self.state is None:
            self.state = relax.const(np.zeros(2, "int32"))
            if self.step is not None:
                step = self.emit(op.astype(self.step, "int32"))
                self.state = self.emit(op.multiply(step, relax.const(np.array([0, 1], "int32"))))
        self.streams += 1
        return stochastic_round(value, self.state, stream=self.streams - 1)

    def is_product(self, value: relax.Expr) -> bool:
        """Whether a matrix product computes `value`, or a term of it, in whatever layout and dtype."""
        call = self.lookup_binding(value) if isinstance(value, relax.Var) else None
        if not isinstance(call, relax.Call):
            return False
        if is_op(call, "relax.add"):
            return any(self.is_product(term) for term in call.args)
        if is_op(call, "relax.astype") or moves_data(call):
            return self.is_product(call.args[0])
        return is_op(call, "relax.matmul")

    def is_new_parameter(self, value: relax.Expr) -> bool:
        """Whether `value` is what an update makes of a parameter."""
        field = self.lookup_binding(value) if isinstance(value, relax.Var) else None
        if not isinstance(field, relax.TupleGetItem) or field.index != 0:
            return False
        return bool(updated_by(self.lookup_binding(field.tuple_value), self.mod))
