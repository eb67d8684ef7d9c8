"""Fill memory with NaN before it is written and after it was last read, and guard what is behind it."""

from __future__ import annotations

import tvm
from tvm import relax

from autocast import ir, settings
from autocast.ir import is_op
from autocast.kernels.state.tensors import ALLOCATIONS, RELEASES, Lifetimes
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
    guards, bindings = _Guards(_users(lives)), []
    for number, binding in enumerate(lives.bindings):
        bindings += guards.around(binding)
        for var in dying.get(number, ()):
            bindings += [*guards.checks(var), _call(POISON, var)]
    for var in tuple(guards.tensors.values()):
        bindings += guards.checks(var)
    body = relax.SeqExpr([relax.BindingBlock(bindings)], function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


class _Guards:
    """What is behind the tensors of a function, whose storage is a guard longer than it was.

    Attributes
    ----------
    tensors : dict of Var to Var
        Of each storage the tensor in it, from its first byte on, until it is checked.
    """

    def __init__(self, users: dict[relax.Var, list[str]]) -> None:
        self._users = users
        self._storage: set[relax.Var] = set()
        self._storage_of: dict[relax.Var, relax.Var] = {}
        self.tensors: dict[relax.Var, relax.Var] = {}

    def around(self, binding: relax.Binding) -> list[relax.Binding]:
        """The next binding of the function, with what there is to do before and after it, but no release."""
        var, value = binding.var, binding.value
        if is_op(value, *RELEASES):
            return []
        if is_op(value, "relax.memory.alloc_storage") and isinstance(value.args[0], relax.ShapeExpr):
            (size,) = value.args[0].values
            self._storage.add(var)
            longer = relax.Call(value.op, [relax.ShapeExpr([size + GUARD]), *value.args[1:]], value.attrs)
            return [relax.VarBinding(var, relax.BlockBuilder().normalize(longer))]
        if not is_op(value, *ALLOCATIONS):
            return [binding]
        if value.args[0] not in self._storage:
            return [binding, _call(POISON, var)]
        other = self.tensors.get(value.args[0])
        before = [] if other is None else self.checks(other)
        self.tensors[value.args[0]], self._storage_of[var] = var, value.args[0]
        return [*before, binding, _call(POISON, var), _call(GUARDED, var)]

    def checks(self, var: relax.Var) -> list[relax.Binding]:
        """The check of what is behind a tensor, unless it is checked, or not guarded."""
        storage = self._storage_of.pop(var, None)
        if storage is None:
            return []
        del self.tensors[storage]
        return [_call(WHOLE, var, tvm.ir.StringImm(", ".join(self._users.get(var, ()))))]


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
