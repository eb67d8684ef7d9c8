"""Compute again what takes less memory traffic than storing and reading it: a difference, a product, a mask."""

from __future__ import annotations

import math

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import dims, is_op, shape_of, storage
from autocast.ir.rewriting import BindingRewriter, rewrite_functions, users_of
from autocast.kernels.matching.translate import declined
from autocast.operators import Kind, is_kind

#: Operators of one instruction, so that only memory counts.
_REPEATED = ("relax.add", "relax.subtract", "relax.multiply", "relax.where")


@mutator
class _Repeat(BindingRewriter):
    def enter(self, function: relax.Function) -> None:
        self.bound, self.users = users_of(function)
        self.repeated = {var for var, value in self.bound.items() if self.may_repeat(var, value)}

    def may_repeat(self, var: relax.Var, value: relax.Expr) -> bool:
        """Whether reading the operands of `var` once for each reader moves fewer bytes than storing `var`."""
        readers = self.users.get(var, [])
        if not isinstance(var, relax.DataflowVar) or self.uses[var] < 2 or not is_op(value, *_REPEATED):
            return False
        if declined(var, value) is not None or not all(self.takes(reader) for reader in readers):
            return False
        operands = sum(_bytes(operand, dims(var)) for operand in value.args)
        return operands * len(readers) < operands + _bytes(var, dims(var)) * len(readers)

    def takes(self, reader: relax.Var) -> bool:
        """Whether the kernel of `reader` computes what is only for it."""
        value = self.bound[reader]
        return is_kind(value, Kind.REDUCTION) or declined(reader, value) is None

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        reads_repeated = isinstance(binding.value, relax.Call) and any(a in self.repeated for a in binding.value.args)
        return self.copied(binding.value) if reads_repeated and binding.var not in self.repeated else None

    def copied(self, call: relax.Call) -> relax.Call:
        """`call` of operands of its own."""
        operands = [
            self.emit(self.copied(self.bound[operand])) if operand in self.repeated else self.new(operand)
            for operand in call.args
        ]
        return relax.Call(call.op, operands, call.attrs, call.ty_args)


def _bytes(operand: relax.Expr, shape: tuple) -> int:
    """What reading an operand costs for each element of `shape`: nothing where it is the same for many."""
    given = shape_of(operand)
    if given is None or not all(isinstance(size, int) for size in (*given, *shape)):
        return tvm.DataType(storage(operand)).itemsize if given else 0
    return 0 if 16 * math.prod(given) <= math.prod(shape) else tvm.DataType(storage(operand)).itemsize


def repeat_cheap(mod: tvm.IRModule) -> tvm.IRModule:
    """Give each reader its own copy of what is as quickly computed as read.

    Before::                             After::

        c = R.subtract(x, mean)              c = R.subtract(x, mean)
        y = R.multiply(c, factor)            y = R.multiply(c, factor)
        s = R.sum(R.multiply(g, c), [0])     d = R.subtract(x, mean)
                                             s = R.sum(R.multiply(g, d), [0])

    Each copy becomes part of its reader's kernel: `c` is never stored.
    """
    return rewrite_functions(mod, _Repeat)
