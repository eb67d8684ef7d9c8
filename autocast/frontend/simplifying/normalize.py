"""Take away what tracing leaves behind: moves that undo each other, flattened products, activations in pieces.

    q1 = R.permute_dims(q, [0, 2, 1, 3])                          o = R.nn.attention(q, k, v)
    q2 = R.permute_dims(q1, [0, 2, 1, 3])
    o  = R.nn.attention(q2, k, v)

    f = R.reshape(x, [batch * 7, 48])                             m = R.matmul(x, w)
    m = R.matmul(f, w)                                            y = R.add(m, b)
    a = R.add(m, b)
    y = R.reshape(a, [batch, 7, 96])

Each rule looks at one call and at what its arguments are bound to; it answers with an equal, simpler expression or
None. No rule changes a value by more than the order of a rounding, or joins what is in different regions.
"""

from __future__ import annotations

import tvm
from tvm import relax

from autocast.frontend.simplifying.common_calls import merge_common_calls
from autocast.frontend.simplifying.simplifications import FIRST, THEN
from autocast.frontend.simplifying.simplifier import Simplifier
from autocast.ir import with_functions
from autocast.ir.places import canonicalize_bindings
from autocast.ir.rewriting import reads_of


def normalize(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[bool]]:
    """The simplified module, and for each parameter after the inputs whether main still takes it (if it is used)."""
    for rules in (FIRST, THEN):
        main = mod["main"]
        simplified = Simplifier(mod, rules, reads_of(main.body)).visit_expr(main)
        mod = canonicalize_bindings(with_functions(mod, {"main": simplified}))
        mod = merge_common_calls(mod)
        mod = relax.transform.DeadCodeElimination(["main"])(mod)
    return _without_unused(mod)


def _without_unused(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[bool]]:
    main = mod["main"]
    inputs = int(main.attrs["num_input"])
    uses = reads_of(main.body)
    updated = {int(position) for position in main.attrs.get("updates", ())}
    used = [var in uses or i in updated for i, var in enumerate(main.params[inputs:])]
    if all(used):
        return mod, used
    kept = [*main.params[:inputs], *(v for v, keep in zip(main.params[inputs:], used, strict=True) if keep)]
    mod["main"] = relax.Function(kept, main.body, main.ret_ty, main.is_pure, main.attrs)
    if updated:
        mod["main"] = mod["main"].with_attr("updates", [sum(used[:position]) for position in sorted(updated)])
    return mod, used
