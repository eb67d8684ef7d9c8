"""Groups of bindings that one kernel computes: found in each function, then replaced by a call of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import relax_functions, with_functions
from autocast.kernels.backend import Backend
from autocast.kernels.matching.kernel_rewriter import KernelRewriter


@dataclass(frozen=True, eq=False)
class Group:
    """Bindings next to each other that one kernel computes.

    Attributes
    ----------
    results
        Those that others read.
    arguments
        What the kernel reads.
    spec
        What it computes.
    title
        Its name, of that and of how many of its kind there are.
    """

    results: tuple[relax.Var, ...]
    arguments: tuple[relax.Expr, ...]
    spec: Any
    title: Callable[[Any, int], str]


def found_groups(
    mod: tvm.IRModule, find: Callable[[relax.Function], tuple[relax.Function, list[Group]]]
) -> tuple[tvm.IRModule, list[Group]]:
    """The groups that `find` finds in each function, and the module with the bindings of each next to each other."""
    functions, groups = {}, []
    for var, function in relax_functions(mod):
        functions[var], found = find(function)
        groups += found
    return with_functions(mod, functions), groups


@mutator
class GroupRewriter(KernelRewriter):
    """Puts a call of its kernel in the place of each group."""

    def __init__(self, mod: tvm.IRModule, backend: Backend, groups: Iterable[Group]) -> None:
        super().__init__(mod, backend)
        self.group_of = {result: group for group in groups for result in group.results}
        self.computed: dict[relax.Var, relax.Expr] = {}

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        """A result of a group: of several, a field of what its kernel computes."""
        group = self.group_of.get(binding.var)
        if group is None:
            return None
        if binding.var not in self.computed:
            kernel = self.kernel(group.spec, partial(group.title, group.spec))
            results = self.call(kernel, group.arguments, group.results)
            self.computed.update(zip(group.results, results, strict=True))
        return self.computed[binding.var]
