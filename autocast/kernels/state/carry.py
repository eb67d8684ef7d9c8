"""Keep the low-precision copies of parameters from one step to the next: who updates a parameter writes its copy."""

from __future__ import annotations

from typing import NamedTuple

import tvm
from tvm import relax

from autocast.ir import is_op, is_static_type, storage, with_new_variables
from autocast.ir.rewriting import replace_variables, users_of
from autocast.kernels.state.state import NUM_STATE, num_state
from autocast.kernels.storage import LOW
from autocast.operators import MULTIPLYING, is_kind
from autocast.runtime.program import CARRY

#: What may stand between a cast and the product that reads it.
_VIEWS = ("relax.permute_dims", "relax.reshape")


class _Copy(NamedTuple):
    """State in low precision: a copy of `state`, read in place of `casts`, and replaced when `state` becomes `new`."""

    var: relax.Var
    state: relax.Var
    new: relax.Expr
    casts: tuple[relax.Var, ...]

    @property
    def stays(self) -> bool:
        """Whether a call leaves the state, and so its copy, as it is: another program changes both."""
        return bool(self.new.same_as(self.state))

    def of(self, value: relax.Expr) -> relax.Expr:
        """`value` as the copy holds it."""
        return relax.op.astype(value, storage(self.var))


def _copies(main: relax.Function) -> list[_Copy]:
    """What to keep: each cast of state to low precision that a product reads."""
    count, inputs = num_state(main), int(main.attrs["num_input"])
    new = dict(zip(main.params[inputs - count : inputs], main.body.body.fields[-count:], strict=True))
    bound, users = users_of(main)

    def is_multiplied(var: relax.Var) -> bool:
        return any(
            is_kind(bound[user], *MULTIPLYING) or (is_op(bound[user], *_VIEWS) and is_multiplied(user))
            for user in users.get(var, ())
        )

    casts: dict[tuple[relax.Var, str], list[relax.Var]] = {}
    for var, value in bound.items():
        if is_op(value, "relax.astype") and storage(var) in LOW and value.args[0] in new and is_static_type(var.ty):
            casts.setdefault((value.args[0], storage(var)), []).append(var)
    return [
        _Copy(relax.Var(f"{state.name}_{dtype}", variables[0].ty), state, new[state], tuple(variables))
        for (state, dtype), variables in casts.items()
        if any(is_multiplied(var) for var in variables)
    ]


def carry_casts(mod: tvm.IRModule) -> tvm.IRModule:
    """Keep low-precision copies of the state that products read so, as state too: then no step casts it.

    What computes the new state writes the new copy as well, in the same sweep: its cast becomes a part of the update's
    kernel.

    Before::                                          After::

        def main(x, p):  # num_state = 1                  def autocast_carry(p):
            b = R.astype(p, "bfloat16")                       return (R.astype(p, "bfloat16"),)
            y = R.matmul(x, b)                            def main(x, p, b):  # num_state = 2
            q = sgd(p, ...)                                   y = R.matmul(x, b)
            return (y, q)                                     q = sgd(p, ...)
                                                              c = R.astype(q, "bfloat16")
                                                              return (y, q, c)

    `autocast_carry` takes the state of the model, and returns the copies, which stand after it. It is called before
    the first step, and whenever the state is set.
    """
    main = mod["main"] if "main" in [var.name_hint for var in mod.get_global_vars()] else None
    if not isinstance(main, relax.Function) or not num_state(main) or not isinstance(main.body.body, relax.Tuple):
        return mod
    *before, block = main.body.blocks
    copies = _copies(main)
    if not copies or not isinstance(block, relax.DataflowBlock):
        return mod
    count, inputs = num_state(main), int(main.attrs["num_input"])
    news = {copy.var: relax.Var(f"{copy.var.name}_new", copy.var.ty) for copy in copies if not copy.stays}
    updates = [relax.VarBinding(news[copy.var], copy.of(copy.new)) for copy in copies if not copy.stays]
    results = relax.Tuple([*main.body.body.fields, *(news.get(copy.var, copy.var) for copy in copies)])
    body = relax.SeqExpr([*before, relax.DataflowBlock([*block.bindings, *updates])], results)
    body = replace_variables(body, {cast: copy.var for copy in copies for cast in copy.casts})
    params = [*main.params[:inputs], *(copy.var for copy in copies), *main.params[inputs:]]
    mod = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    mod[CARRY] = _carry(main.params[inputs - count : inputs], copies)
    mod["main"] = relax.Function(params, body, None, main.is_pure, main.attrs).with_attrs(
        {"num_input": inputs + len(copies), NUM_STATE: count + len(copies)}
    )
    return relax.transform.DeadCodeElimination()(mod)


def _carry(state: list[relax.Var], copies: list[_Copy]) -> relax.Function:
    """The function from `state` to the values of `copies`."""
    computed = [relax.DataflowVar(copy.var.name, copy.var.ty) for copy in copies]
    bindings = [relax.VarBinding(var, copy.of(copy.state)) for var, copy in zip(computed, copies, strict=True)]
    values = relax.Tuple(computed)
    out = relax.Var("copies", tvm.ir.TupleType([copy.var.ty for copy in copies]))
    body = relax.SeqExpr([relax.DataflowBlock([*bindings, relax.VarBinding(out, values)])], out)
    function = relax.Function(list(state), body, out.ty).with_attr("global_symbol", CARRY)
    return with_new_variables(function)
