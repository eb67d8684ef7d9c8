"""Fill memory with NaN before it is written and after it was last read, and guard what is behind it."""

from __future__ import annotations

import tvm
from tvm import relax

from autocast import ir, settings
from autocast.ir import is_op
from autocast.kernels.state.tensors import RELEASES, Lifetimes
from autocast.runtime.poison import GUARD, GUARDED, POISON, WHOLE


@tvm.transform.module_pass(opt_level=0, name="PoisonMemory")
class PoisonMemory:
    """Where AUTOCAST_DEBUG says so, poison each tensor of a released module as it is allocated, and when it dies.

    So no kernel reads garbage unseen; and none writes behind a tensor unseen, where bytes lie that nobody may change::

        storage = R.memory.alloc_storage((n,))      storage = R.memory.alloc_storage((n + GUARD,))
        a = R.memory.alloc_tensor(storage, ...)     a = R.memory.alloc_tensor(storage, ...)
        cls.exp(x, a)                               R.call_packed("autocast.poison", a)
        cls.add(a, y, b)                            R.call_packed("autocast.poison.guard", a)
        return b                                    cls.exp(x, a)
                                                    cls.add(a, y, b)
                                                    R.call_packed("autocast.poison.whole", a, "exp, add")
                                                    R.call_packed("autocast.poison", a)
                                                    R.call_packed("autocast.poison.whole", b, "add")
                                                    return b

    Kernels poison their workspaces (`Unit.scratch`).
    """

    def transform_module(self, mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """The module, as the class says."""
        if not settings.debug().poison:
            return mod
        poisoned = {var: _poisoned(mod, function) for var, function in ir.relax_functions(mod)}
        return relax.transform.KillAfterLastUse()(ir.with_functions(mod, poisoned))


def _poisoned(mod: tvm.IRModule, function: relax.Function) -> relax.Function:
    lives = Lifetimes(mod, function)
    lives.keep([function.body.body])
    dying: dict[int, list[relax.Var]] = {}
    for (var, _), number in lives.last.items():
        if var in lives.allocated:
            dying.setdefault(number, []).append(var)
    guarded, users = _Guarded(), _users(lives)

    def at_its_end(var: relax.Var, *, dies: bool) -> list[relax.Binding]:
        checked = [_call(WHOLE, var, tvm.ir.StringImm(", ".join(users.get(var, ()))))] if var in guarded.tensors else []
        return [*checked, _call(POISON, var)] if dies else checked

    blocks, number = [], 0
    for block in function.body.blocks:
        bindings = []
        for binding in block.bindings:
            if not is_op(binding.value, *RELEASES):
                bindings.append(guarded.binding(binding))
            if binding.var in lives.allocated:
                bindings.append(_call(POISON, binding.var))
            if binding.var in guarded.tensors:
                bindings.append(_call(GUARDED, binding.var))
            for var in dying.get(number, ()):
                bindings += at_its_end(var, dies=True)
            number += 1
        blocks.append(relax.BindingBlock(bindings))
    results = [call for var in dying.get(lives.end, ()) for call in at_its_end(var, dies=False)]
    body = relax.SeqExpr([*blocks, relax.BindingBlock(results)], function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


class _Guarded:
    """Storage that is a guard longer than it was, and the tensors in it: one at a time, from its first byte on."""

    def __init__(self) -> None:
        self._storage: set[relax.Var] = set()
        self.tensors: set[relax.Var] = set()

    def binding(self, binding: relax.Binding) -> relax.Binding:
        """The next binding of a function; longer, if it allocates storage."""
        value = binding.value
        if is_op(value, "relax.memory.alloc_tensor") and value.args[0] in self._storage:
            self.tensors.add(binding.var)
        if not is_op(value, "relax.memory.alloc_storage") or not isinstance(value.args[0], relax.ShapeExpr):
            return binding
        (size,) = value.args[0].values
        self._storage.add(binding.var)
        longer = relax.Call(value.op, [relax.ShapeExpr([size + GUARD]), *value.args[1:]], value.attrs)
        return relax.VarBinding(binding.var, relax.BlockBuilder().normalize(longer))


def _users(lives: Lifetimes) -> dict[relax.Var, list[str]]:
    """The kernels that read or write each tensor that a function allocates."""
    users: dict[relax.Var, list[str]] = {}
    for binding in lives.bindings:
        call = binding.value
        if not isinstance(call, relax.Call):
            continue
        op, *args = call.args if is_op(call, "relax.vm.call_tir_dyn") else (call.op, *call.args)
        if isinstance(op, tvm.ir.GlobalVar):
            for var in {var for arg in args for var, _ in lives.tensors.of(arg)} & lives.allocated:
                users.setdefault(var, []).append(op.name_hint)
    return users


def _call(name: str, *args: relax.Expr) -> relax.VarBinding:
    nothing = tvm.ir.TupleType([])
    call = relax.BlockBuilder().normalize(relax.Call(relax.ExternFunc(name), args, ty_args=[nothing]))
    return relax.VarBinding(relax.Var("_", nothing), call)
