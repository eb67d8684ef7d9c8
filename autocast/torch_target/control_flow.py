"""A scope that has choices and loops, and so have their parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from autocast.torch_target.asked import Value
from autocast.torch_target.choices import chosen
from autocast.torch_target.loops import looped
from autocast.torch_target.recursion import Loop
from autocast.torch_target.scope import Scope


class ControlFlow(Scope):
    """A scope that has choices and loops.

    Parameters
    ----------
    exact : bool
        As `to_torch` takes it.
    loops : mapping of str to Loop
        The functions that call themselves, by their names.
    """

    def __init__(self, exact: bool, loops: Mapping[str, Loop]) -> None:
        super().__init__(exact)
        self.loops = loops

    def inner(self) -> Scope:
        """That of a part."""
        return ControlFlow(self.exact, self.loops)

    def value(self, expr: Any) -> Value:
        """What an expression is in the graph."""
        if isinstance(expr, relax.If):
            return chosen(self, expr)
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.GlobalVar):
            return looped(self, self.loops[expr.op.name_hint], [self.value(arg) for arg in expr.args])
        return super().value(expr)
