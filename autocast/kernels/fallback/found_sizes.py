"""Sizes that values decide, before what reads them: TVM's fusion orders what it fused by variables alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax, tirx
from tvm.relax.analysis import free_symbolic_vars

from autocast.ir.matched import sizes_in
from autocast.ir.rewriting import reads_of
from autocast.ir.views import all_bindings, identity, relax_functions, with_functions


def finders_of(mod: tvm.IRModule) -> dict[int, relax.Var]:
    """Of each size that values decide, by its identity: the variable of the first `match_cast` that finds it."""
    finders: dict[int, relax.Var] = {}
    for _, function in relax_functions(mod):
        known = {identity(size) for param in function.params for sizes in sizes_in(param.ty) for size in sizes}
        for binding in all_bindings(function.body):
            if isinstance(binding, relax.MatchCast):
                for size in (size for sizes in sizes_in(binding.ty) for size in sizes if isinstance(size, tirx.Var)):
                    if identity(size) not in known:
                        finders.setdefault(identity(size), binding.var)
    return finders


def behind_finders(mod: tvm.IRModule, finders: Mapping[int, relax.Var]) -> tvm.IRModule:
    """Move what reads a size behind the `match_cast` that found it before the calls were ordered anew.

    Before::                                              After::

        y = R.call_tir(cls.full, R.shape([n]), ...)           u = R.call_pure_packed("unique", x)
        u = R.call_pure_packed("unique", x)                   v = R.match_cast(u, R.Tensor(("n",)))
        v = R.match_cast(u, R.Tensor(("n",)))                 y = R.call_tir(cls.full, R.shape([n]), ...)
    """
    if not finders:
        return mod
    changed = {}
    for var, function in relax_functions(mod):
        blocks = list(function.body.blocks)
        ordered = [_ordered(b.bindings, finders) if isinstance(b, relax.DataflowBlock) else None for b in blocks]
        if any(ordered):
            blocks = [relax.DataflowBlock(new) if new else old for new, old in zip(ordered, blocks, strict=True)]
            body = relax.SeqExpr(blocks, function.body.body)
            changed[var] = relax.Function(
                function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span
            )
    return relax.transform.Normalize()(with_functions(mod, changed)) if changed else mod


def _ordered(bindings: Sequence[relax.Binding], finders: Mapping[int, relax.Var]) -> list[relax.Binding] | None:
    """The bindings, each behind what it reads; None if they are so already."""
    places = {binding.var: at for at, binding in enumerate(bindings)}
    waits = []
    for binding in bindings:
        found = (finders.get(identity(size)) for size in free_symbolic_vars(binding.value))
        waits.append([places[var] for var in (*reads_of(binding.value), *found) if var in places])
    order: dict[int, None] = {}
    for at in range(len(bindings)):
        stack = [at]
        while stack:
            missing = next((before for before in waits[stack[-1]] if before not in order), None)
            if missing is None:
                order.setdefault(stack.pop())
            else:
                stack.append(missing)
    return None if list(order) == sorted(order) else [bindings[at] for at in order]
