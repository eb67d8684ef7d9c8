"""A scope that has choices, loops and calls of functions, and so have their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from autocast.ir import items
from autocast.torch_target.asked import Value
from autocast.torch_target.choices import chosen
from autocast.torch_target.loops import looped
from autocast.torch_target.recursion import Loop
from autocast.torch_target.scope import Scope
from autocast.torch_target.sizes import Sizes


class ControlFlow(Scope):
    """A scope that has choices, loops and calls of functions.

    Parameters
    ----------
    exact : bool
        As `to_torch` takes it.
    loops : mapping of str to Loop
        The functions that call themselves, by their names.
    others : mapping of str to relax.Function
        Those that are written out where they are called.
    """

    def __init__(self, exact: bool, loops: Mapping[str, Loop], others: Mapping[str, relax.Function]) -> None:
        super().__init__(exact)
        self.loops, self.others = loops, others

    def inner(self) -> Scope:
        """That of a part."""
        return ControlFlow(self.exact, self.loops, self.others)

    def value(self, expr: Any) -> Value:
        """What an expression is in the graph."""
        if isinstance(expr, relax.If):
            return chosen(self, expr)
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.GlobalVar):
            name, given = expr.op.name_hint, [self.value(arg) for arg in items(expr.args)]
            return looped(self, self.loops[name], given) if name in self.loops else self.written_out(name, given)
        return super().value(expr)

    def written_out(self, name: str, given: Sequence[Value]) -> Value:
        """The result of a function, whose sizes are those of this call."""
        function, around = self.others[name], self.sizes
        self.sizes = Sizes()
        for var, value in zip(function.params, given, strict=True):
            self.bind(var, value)
        result = self.sequence(function.body)
        self.sizes = around
        return result
