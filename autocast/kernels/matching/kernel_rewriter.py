"""What rules that put kernels into a module share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvm
from tvm import relax

from autocast.ir import dims, storage
from autocast.ir.rewriting import BindingRewriter
from autocast.kernels.backend import Backend


class KernelRewriter(BindingRewriter):
    """A rewriter that has one kernel for all equal specs of a module.

    Those that look for patterns set what each variable of a function is bound to, and who reads it, as they enter it.
    """

    bound: dict[relax.Var, relax.Expr]
    users: dict[relax.Var, list[relax.Var]]

    def __init__(self, mod: tvm.IRModule, backend: Backend) -> None:
        super().__init__(mod)
        self.backend = backend
        self.kernels: dict[Any, tvm.ir.GlobalVar] = {}
        self.results: dict[tvm.ir.GlobalVar, relax.TensorType] = {}

    def kernel(self, spec: Any, title: Callable[[int], str]) -> tvm.ir.GlobalVar:
        """The function that computes `spec`; a new one is named by `title` of how many of its kind there are."""
        if spec not in self.kernels:
            name = title(sum(type(other) is type(spec) for other in self.kernels))
            function = self.backend.generate(spec, name)
            var = self.kernels[spec] = self.builder_.add_func(function, name)
            written = function.params[-1].ty
            self.results[var] = relax.TensorType(list(written.shape), str(written.dtype))
        return self.kernels[spec]

    def call(
        self, kernel: tvm.ir.GlobalVar, arguments: Iterable[relax.Expr], like: Sequence[relax.Var]
    ) -> list[relax.Expr]:
        """Tensors like the variables `like`, which a kernel computes of expressions of the original function."""
        types = [relax.TensorType(dims(var), storage(var)) for var in like]
        call = relax.call_tir(kernel, [self.new(a) for a in arguments], types[0] if len(types) == 1 else types)
        if len(types) == 1:
            return [call]
        whole = self.emit(call)
        return [relax.TupleGetItem(whole, number) for number in range(len(types))]

    def value_of(self, expr: relax.Expr) -> Any:
        """What `expr` is bound to; None for a parameter, and for what is no variable."""
        return self.bound.get(expr) if isinstance(expr, relax.Var) else None

    def only_user(self, var: relax.Var) -> relax.Var | None:
        """The one variable that is computed from `var`; None where it has several readers, or is returned."""
        readers = self.users.get(var, [])
        return readers[0] if len(readers) == 1 and self.uses[var] == 1 and readers[0] in self.bound else None
