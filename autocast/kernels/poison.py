"""Fill memory with NaN before it is written and after it was last read, so that no kernel reads garbage unseen."""

from __future__ import annotations

import tvm
from tvm import relax

from autocast import ir, settings
from autocast.ir import is_op
from autocast.kernels.state.tensors import ALLOCATIONS, Lifetimes
from autocast.runtime.program import POISON


def is_poisoning(call: relax.Call) -> bool:
    """Whether a call is one that `PoisonMemory` adds."""
    return isinstance(call.op, relax.ExternFunc) and str(call.op.global_symbol) == POISON


@tvm.transform.module_pass(opt_level=0, name="PoisonMemory")
class PoisonMemory:
    """Where AUTOCAST_DEBUG says so, poison each tensor of a planned module as it is allocated, and when it dies.

    Before::                                    After::

        a = R.memory.alloc_tensor(storage, ...)     a = R.memory.alloc_tensor(storage, ...)
        cls.exp(x, a)                               R.call_packed("autocast.poison", a)
        cls.add(a, y, b)                            cls.exp(x, a)
        return b                                    cls.add(a, y, b)
                                                    R.call_packed("autocast.poison", a)
                                                    return b

    Kernels do the same to their workspaces (`Unit.scratch`).
    """

    def transform_module(self, mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """The module, as the class says."""
        if not settings.debug().poison:
            return mod
        poisoned = {var: _poisoned(mod, function) for var, function in ir.relax_functions(mod)}
        return ir.with_functions(mod, poisoned)


def _poisoned(mod: tvm.IRModule, function: relax.Function) -> relax.Function:
    lives = Lifetimes(mod, function)
    lives.keep([function.body.body])
    dying: dict[int, list[relax.Var]] = {}
    for (var, _), number in lives.last.items():
        if var in lives.allocated:
            dying.setdefault(number, []).append(var)
    blocks, number = [], 0
    for block in function.body.blocks:
        bindings = []
        for binding in block.bindings:
            bindings.append(binding)
            made = [binding.var] if is_op(binding.value, *ALLOCATIONS) else []
            bindings += [_call(var) for var in (*made, *dying.get(number, ()))]
            number += 1
        blocks.append(relax.BindingBlock(bindings))
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _call(var: relax.Var) -> relax.VarBinding:
    nothing = tvm.ir.TupleType([])
    call = relax.Call(relax.ExternFunc(POISON), [var], ty_args=[nothing])
    call = relax.BlockBuilder().normalize(call)
    return relax.VarBinding(relax.Var("_", nothing), call)
