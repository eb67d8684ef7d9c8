"""Compute gradients where they are sent from: in their bucket, so that nothing is copied."""

from __future__ import annotations

import math
from collections import Counter

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.op import memory

from autocast.ir import dtype_of, main_of, static_shape, with_functions
from autocast.ir.rewriting import reads_of
from autocast.kernels.state.tensors import Lifetimes, Tensor, is_alias, returned
from autocast.runtime.collectives import START, places


class _Buckets(Lifetimes):
    """Which allocations are parts of which buckets.

    Attributes
    ----------
    inside : dict of Var to (Var, int)
        An allocated tensor that one kernel writes and nobody but the network reads -> the allocation of its bucket,
        and the byte of it where the tensor begins.
    """

    def __init__(self, mod: tvm.IRModule, function: relax.Function) -> None:
        super().__init__(mod, function)
        self.inside: dict[relax.Var, tuple[relax.Var, int]] = {}
        if not any(map(_sends, self.bindings)):
            return
        self.keep(returned(self.bindings, function.body.body))
        calls = [binding.value for binding in self.bindings if not is_alias(binding.value)]
        self._uses = Counter(
            tensor for call in calls for tensor in {held for var in reads_of(call) for held in self.tensors.of(var)}
        )
        for number, binding in enumerate(self.bindings):
            if _sends(binding):
                self._begin(number, binding.value)

    def _begin(self, number: int, call: relax.Call) -> None:
        """Look at what is sent by a call."""
        *parts, buffer = call.args
        itemsize = tvm.DataType(str(dtype_of(parts[0]))).itemsize
        sizes = [math.prod(static_shape(part) or ()) for part in parts]
        ((bucket, _),) = self.tensors.of(buffer)
        held = [self.tensors.of(part) for part in parts]
        for tensors, size, start in zip(held, sizes, places(sizes), strict=False):
            whole = len(tensors) == 1 and self.tensors.size[tensors[0]] == size * itemsize
            if whole and held.count(tensors) == 1 and self._is_only_sent(tensors[0], number):
                self.inside[tensors[0][0]] = bucket, start * itemsize

    def _is_only_sent(self, tensor: Tensor, number: int) -> bool:
        """Whether a tensor is allocated, written by one kernel, and read by the call of this number alone."""
        return tensor[0] in self.allocated and self._uses[tensor] == 2 and self.last[tensor] == number


def _sends(binding: relax.Binding) -> bool:
    function = getattr(binding.value, "op", None)
    return isinstance(function, relax.ExternFunc) and function.global_symbol == START


@mutator
class _Writer(PyExprMutator):
    """Makes views of what is inside of a bucket, which is allocated before the first of them."""

    def __init__(self, mod: tvm.IRModule, inside: dict[relax.Var, tuple[relax.Var, int]], values: dict) -> None:
        super().__init__(mod)
        self.inside, self.values = inside, values
        self.buckets: dict[relax.Var, relax.Var] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var in self.inside:
            bucket, start = self.inside[binding.var]
            whole = self.bucket(bucket)
            view = self.builder_.emit(memory.view(whole, binding.var.ty.shape, dtype_of(binding.var), start))
            part = self.builder_.emit(memory.ensure_zero_offset(view), binding.var.name)
            self.set_var_remap(binding.var, part)
        elif binding.var not in self.buckets:
            super().visit_var_binding_(binding)

    def bucket(self, old: relax.Var) -> relax.Var:
        """The allocation of a bucket, here at the latest."""
        if old not in self.buckets:
            self.buckets[old] = self.builder_.emit(self.values[old], old.name)
            self.set_var_remap(old, self.buckets[old])
        return self.buckets[old]


@tvm.transform.module_pass(opt_level=0, name="ComputeIntoBuckets")
class ComputeIntoBuckets:
    """Let kernels write gradients to the buckets from which they are sent.

    Before::                                  After::

        g = alloc_tensor((4,), "float32")         s = alloc_tensor((128,), "uint8")
        sum(x, g)                                 g = view(s, (4,), "float32", 0)
        s = alloc_tensor((128,), "uint8")         sum(x, g)
        all_reduce_start(g, s)                    all_reduce_start(g, s)

    What is given back, or read by others too, is copied by `all_reduce_start`.
    """

    def transform_module(self, mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """The module, as the class says."""
        main = main_of(mod)
        if main is None:
            return mod
        buckets = _Buckets(mod, main)
        if not buckets.inside:
            return mod
        writer = _Writer(mod, buckets.inside, {binding.var: binding.value for binding in buckets.bindings})
        return with_functions(mod, {"main": writer.visit_expr(main)})
