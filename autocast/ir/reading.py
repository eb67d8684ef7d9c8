"""The bindings of a module as plain Python values: every access to a field of the IR calls into C++."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import tvm
from tvm import relax

from autocast.ir.views import identity, items, relax_functions

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
    """A module whose bindings are read once, however many walk over them.

    Bindings that `mod` shares with the module of another reading are not read again.
    """

    def __init__(self, mod: tvm.IRModule, other: Reading | None = None) -> None:
        self.mod = mod
        self._blocks: dict[int, list[tuple[relax.BindingBlock, list[Bound]]]] = {}
        self._params: dict[int, list[relax.Var]] = {}
        self._bound: dict[int, Bound] = {} if other is None else other._bound.copy()

    def blocks(self, sequence: relax.SeqExpr) -> list[tuple[relax.BindingBlock, list[Bound]]]:
        """The blocks of a sequence of the module, each with its bindings."""
        key = identity(sequence)
        if key not in self._blocks:
            blocks = items(sequence.blocks)
            self._blocks[key] = [(block, list(map(self._read, items(block.bindings)))) for block in blocks]
        return self._blocks[key]

    def params(self, function: relax.Function) -> list[relax.Var]:
        """The parameters of a function."""
        key = identity(function)
        if key not in self._params:
            self._params[key] = items(function.params)
        return self._params[key]

    @cached_property
    def beside_calls(self) -> list[Bound]:
        """The bindings of its functions that are no variables of calls."""
        found = [bound for _, function in relax_functions(self.mod) for bound in self.all_bindings(function.body)]
        return [bound for bound in found if not bound.op or type(bound.binding) is not relax.VarBinding]

    def _read(self, binding: relax.Binding) -> Bound:
        key = identity(binding)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = _read(binding)
        return bound

    def all_bindings(self, sequence: relax.SeqExpr) -> Iterator[Bound]:
        """The bindings of a sequence in order, those inside its conditionals before the conditional's own."""
        for _, block in self.blocks(sequence):
            for bound in block:
                value = bound.value
                if bound.op == _NO_CALL and type(value) is relax.If:
                    yield from self.all_bindings(value.true_branch)
                    yield from self.all_bindings(value.false_branch)
                yield bound


def _read(binding: relax.Binding) -> Bound:
    var, value = binding.var, binding.value
    if type(value) is not relax.Call:
        return Bound(binding, var, identity(var), value, _NO_CALL, [], [])
    args = items(value.args)
    return Bound(binding, var, identity(var), value, identity(value.op), args, list(map(identity, args)))
