"""Tell the parameters that a call replaces from those that stay the same."""

from __future__ import annotations

import tvm
from tvm import relax

from autocast.ir import main_of, with_functions
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
    main = main_of(mod)
    if main is None or not updates_of(main):
        return mod
    updates = updates_of(main)
    inputs = int(main.attrs["num_input"])
    params = list(main.params[inputs:])
    state = [params[position] for position in updates]
    others = [param for position, param in enumerate(params) if position not in updates]
    ordered = [*main.params[:inputs], *state, *others]
    main = relax.Function(ordered, main.body, main.ret_ty, main.is_pure, main.attrs).without_attr("updates")
    main = main.with_attrs({"num_input": inputs + len(state), NUM_STATE: len(state)})
    return with_functions(mod, {"main": main})


def inline_functions(mod: tvm.IRModule) -> tvm.IRModule:
    """Inline the functions that a `main` with state calls.

    An optimizer's update is one, so that AutoCast leaves its precision alone. It becomes one elementwise kernel, with
    what scales the gradient; what depends on the step alone is computed once.
    """
    main = main_of(mod)
    if main is None or not num_state(main):
        return mod
    values = [binding.value for block in main.body.blocks for binding in block.bindings]
    called = {value.op for value in values if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)}
    inlined = main.inline_functions({var: mod[var] for var in called if isinstance(mod[var], relax.Function)})
    mod = with_functions(mod, {"main": inlined})
    return tvm.transform.Sequential([relax.transform.EliminateCommonSubexpr(), relax.transform.DeadCodeElimination()])(
        mod
    )
