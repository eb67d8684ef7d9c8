"""Add gradients to the state that they become a part of as they are computed: they need no memory of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax

from autocast.ir import dims, is_op, main_of, number_of, op_name, same_shape, storage, with_functions
from autocast.ir.rewriting import reads_of, users_of
from autocast.kernels.explain import explain
from autocast.kernels.state.state import num_state

#: Operators whose kernels add what they compute to another tensor, in place, in the order in which they do it.
_ADDING = ("relax.matmul", "relax.grad.take_backward")


class _Sums:
    """The sums that replace state, each as the list of what is added, in the best order."""

    def __init__(self, main: relax.Function) -> None:
        self.bound: dict[relax.Var, Any] = users_of(main)[0]
        self.uses = reads_of(main.body)
        count, inputs = num_state(main), int(main.attrs["num_input"])
        self.of: dict[relax.Var, list[relax.Expr]] = {}
        for state, new in zip(main.params[inputs - count : inputs], main.body.body.fields[-count:], strict=True):
            terms = list(self.terms(new)) if is_op(self.bound.get(new), "relax.add") else []
            if terms:
                own = [term for term in terms if self.is_multiple(term, state)]
                added = {name: [term for term in terms if self.kind(term) == name] for name in _ADDING}
                if len(own) == 1 and any(added.values()):
                    first = own + [term for group in added.values() for term in group]
                    self.of[new] = first + [term for term in terms if not any(term.same_as(one) for one in first)]
                numbers = ", ".join(f"{len(group)} x {name}" for name, group in added.items() if group)
                reason = f"{numbers or 'no product and no lookup'}, {len(own)} terms of {state.name}"
                explain("accumulate", new, reason, taken=new in self.of)

    def terms(self, total: relax.Var) -> Iterator[relax.Expr]:
        """What is added to `total` and read by nothing else."""
        for term in self.bound[total].args:
            is_sum = is_op(self.bound.get(term), "relax.add") and self.uses[term] == 1
            if is_sum and same_shape(dims(term), dims(total)):
                yield from self.terms(term)
            else:
                yield term

    def is_multiple(self, term: relax.Expr, state: relax.Var) -> bool:
        """Whether `term` is `state` times a number."""
        value: Any = self.bound.get(term) if isinstance(term, relax.Var) else None
        if is_op(value, "relax.multiply") and self.uses[term] == 1:
            return any(
                data.same_as(state) and number_of(number) is not None
                for number, data in (value.args, reversed(value.args))
            )
        return term.same_as(state)

    def kind(self, term: relax.Expr) -> str | None:
        """The operator of `_ADDING` that computes `term`, the one way round or the other; None where there is none."""
        value: Any = self.bound.get(term) if isinstance(term, relax.Var) else None
        if value is None or self.uses[term] != 1 or storage(term) != "float32":
            return None
        if is_op(value, "relax.permute_dims") and is_op(self.bound.get(value.args[0]), "relax.matmul"):
            return "relax.matmul"
        return op_name(value) if op_name(value) in _ADDING else None


def accumulate_gradients(mod: tvm.IRModule) -> tvm.IRModule:
    """Reorder the sums that replace state: the state first, then products, then lookups' gradients, then the rest.

    Before::                                                  After::

        d = R.matmul(g, x)                                        d = R.matmul(g, x)
        t = R.grad.take_backward(h, p, numbers)                   t = R.grad.take_backward(h, p, numbers)
        s = R.add(d, t)                                           a = R.add(R.multiply(0.9, m), d)
        n = R.add(R.multiply(0.9, m), s)  # replaces m            n = R.add(a, t)

    Kernels add products and lookups' gradients to what is there already, so both are then written over m: the gradient
    of a weight that is multiplied, of one that is looked up, or of one that is both, is never stored. Optimizers that
    read a gradient twice, such as Adam, need it as it is.
    """
    main = main_of(mod)
    if main is None or not num_state(main) or not isinstance(main.body.body, relax.Tuple):
        return mod
    sums = _Sums(main)
    if not sums.of:
        return mod
    builder = relax.BlockBuilder()
    blocks = []
    for block in main.body.blocks:
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            bindings += _summed(builder, binding, sums.of[binding.var]) if binding.var in sums.of else [binding]
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, main.body.body)
    summed = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return relax.transform.DeadCodeElimination()(with_functions(mod, {"main": summed}))


def _summed(
    builder: relax.BlockBuilder, binding: relax.VarBinding, terms: list[relax.Expr]
) -> Iterator[relax.VarBinding]:
    """The bindings that add `terms` one after the other, to the variable of `binding`."""
    total, *others = terms
    for number, term in enumerate(others, 1):
        value = builder.normalize(relax.op.add(total, term))
        total = binding.var if number == len(others) else relax.DataflowVar(f"{binding.var.name}_{number}", value.ty)
        yield relax.VarBinding(total, value)
