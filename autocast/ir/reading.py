"""The bindings of a module as plain Python values: every access to a field of the IR calls into C++."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import tvm
from tvm import relax

from autocast.ir.views import identity, items

#: What stands for the operator of a value that is no call.
_NO_CALL = 0


class Bound(NamedTuple):
    """One binding: its variable and value, and of a call the operator and the arguments, all with their `identity`."""

    binding: relax.Binding
    var: relax.Var
    key: int
    value: relax.Expr
    op: int
    args: list[relax.Expr]
    keys: list[int]


class Reading:
    """A module whose bindings are read once, however many walk over them."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod
        self._blocks: dict[int, list[tuple[relax.BindingBlock, list[Bound]]]] = {}

    def blocks(self, sequence: relax.SeqExpr) -> list[tuple[relax.BindingBlock, list[Bound]]]:
        """The blocks of a sequence of the module, each with its bindings."""
        key = identity(sequence)
        if key not in self._blocks:
            self._blocks[key] = [(block, list(map(_read, items(block.bindings)))) for block in items(sequence.blocks)]
        return self._blocks[key]

    def all_bindings(self, sequence: relax.SeqExpr) -> Iterator[Bound]:
        """The bindings of a sequence in order, those inside its conditionals before the conditional's own."""
        for _, block in self.blocks(sequence):
            for bound in block:
                value = bound.value
                if bound.op == _NO_CALL and isinstance(value, relax.If):
                    yield from self.all_bindings(value.true_branch)
                    yield from self.all_bindings(value.false_branch)
                yield bound


def _read(binding: relax.Binding) -> Bound:
    var, value = binding.var, binding.value
    if not isinstance(value, relax.Call):
        return Bound(binding, var, identity(var), value, _NO_CALL, [], [])
    args = items(value.args)
    return Bound(binding, var, identity(var), value, identity(value.op), args, [identity(arg) for arg in args])
