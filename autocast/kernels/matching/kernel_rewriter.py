"""What rules that put kernels into a module share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from autocast.ir.rewriting import BindingRewriter
from autocast.kernels.backend import Backend


class KernelRewriter(BindingRewriter):
    """A rewriter that has one kernel for all equal specs of a module."""

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
