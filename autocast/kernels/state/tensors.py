"""Which tensors the variables of a function hold, through tuples and views."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import tvm
from tvm import relax, tirx

from autocast.ir import is_op
from autocast.ir.rewriting import reads_of
from autocast.runtime import collectives, sharding

#: Operators whose result is their first operand, looked at in another way.
VIEWS = ("relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset")

#: Operators that allocate a tensor: in storage of its own, or in storage that the memory plan gives it.
ALLOCATIONS = ("relax.builtin.alloc_tensor", "relax.memory.alloc_tensor")

#: Operators that give memory back.
RELEASES = ("relax.memory.kill_storage", "relax.memory.kill_tensor")

#: Functions outside of the module that give back no operand: they send, or copy, what they are given.
_SENDING = frozenset((*collectives.FUNCTIONS, *sharding.FUNCTIONS))

#: One tensor: the variable that is bound to the call that makes it, and which of its results it is.
Tensor = tuple[relax.Var, int]


class Tensors:
    """The tensors of one function; its bindings are told in order.

    Attributes
    ----------
    size : dict of Tensor to int
        Bytes; 0 where a tensor is an argument, or its shape is known at run time only.
    """

    def __init__(self, function: relax.Function) -> None:
        self._held: dict[relax.Var, list[Tensor]] = {param: [(param, 0)] for param in function.params}
        self.size: dict[Tensor, int] = {(param, 0): 0 for param in function.params}

    def bind(self, binding: relax.Binding) -> None:
        """Note what the next binding makes or renames."""
        var, value = binding.var, binding.value
        if is_alias(value):
            self._held[var] = self._renamed(value)
            return
        types = var.ty.fields if isinstance(var.ty, tvm.ir.TupleType) else [var.ty]
        self._held[var] = [(var, i) for i in range(len(types))]
        self.size.update(((var, i), _bytes(ty)) for i, ty in enumerate(types))

    def of(self, expr: relax.Expr) -> list[Tensor]:
        """The tensors that `expr` refers to; a constant is none."""
        if isinstance(expr, relax.Tuple):
            return [tensor for field in expr.fields for tensor in self.of(field)]
        return self._held.get(expr, []) if isinstance(expr, relax.Var) else []

    def _renamed(self, value: relax.Expr) -> list[Tensor]:
        if isinstance(value, relax.TupleGetItem):
            fields, types = self.of(value.tuple_value), value.tuple_value.ty.fields
            flat = len(fields) == len(types) and not any(isinstance(ty, tvm.ir.TupleType) for ty in types)
            return [fields[value.index]] if flat else fields
        return self.of(value.args[0] if isinstance(value, relax.Call) else value)


class Lifetimes:
    """When each tensor of a planned function is read first and last, counted in bindings.

    Attributes
    ----------
    bindings : list of Binding
        Those of the function, in order.
    end : int
        Their number: when what is returned is read.
    tensors : Tensors
        All bindings are told.
    allocated : set of Var
        What holds a tensor that the function allocates.
    first, last : dict of Tensor to int
        The bindings that read a tensor; one that is read by what may give it back is read until the end.
    """

    def __init__(self, mod: tvm.IRModule, function: relax.Function) -> None:
        self._mod = mod
        self.bindings = [binding for block in function.body.blocks for binding in block.bindings]
        self.end = len(self.bindings)
        self.tensors = Tensors(function)
        self.allocated: set[relax.Var] = set()
        self.first: dict[Tensor, int] = {}
        self.last: dict[Tensor, int] = {}
        for number, binding in enumerate(self.bindings):
            self._read(number, binding)

    def keep(self, values: Sequence[relax.Expr]) -> None:
        """Note that tensors are read when all calls are done."""
        for value in values:
            for tensor in self.tensors.of(value):
                self.last[tensor] = self.end

    def _read(self, number: int, binding: relax.Binding) -> None:
        value = binding.value
        self.tensors.bind(binding)
        if is_op(value, *ALLOCATIONS):
            self.allocated.add(binding.var)
        if is_alias(value) or is_op(value, *RELEASES):
            return
        # What is not known to be a kernel may give back an operand.
        until = number if self._is_kernel(value) else self.end
        for tensor in {tensor for var in reads_of(value) for tensor in self.tensors.of(var)}:
            self.first.setdefault(tensor, number)
            self.last[tensor] = max(self.last.get(tensor, 0), until)

    def _is_kernel(self, value: relax.Expr) -> bool:
        if is_op(value, "relax.vm.call_tir_dyn"):
            return True
        if isinstance(value, relax.Call) and isinstance(value.op, relax.ExternFunc):
            return str(value.op.global_symbol) in _SENDING  # they copy what they read
        is_call = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)
        return is_call and isinstance(self._mod[value.op], tirx.PrimFunc)


def is_alias(value: relax.Expr) -> bool:
    """Whether `value` only renames, groups or reshapes tensors, or is none."""
    return not isinstance(value, relax.Call | relax.If) or is_op(value, *VIEWS)


def returned(bindings: Iterable[relax.Binding], result: relax.Expr) -> list[relax.Expr]:
    """The expressions of each tensor that `result`, what a function returns after `bindings`, consists of."""
    values = {binding.var: binding.value for binding in bindings}
    while isinstance(result, relax.Var) and isinstance(values.get(result), relax.Var | relax.Tuple):
        result = values[result]
    return list(result.fields) if isinstance(result, relax.Tuple) else [result]


def _bytes(ty: tvm.ir.Type) -> int:
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return 0
    dims = list(ty.shape.values)
    if any(not isinstance(dim, int | tvm.tirx.IntImm) for dim in dims):
        return 0
    return math.prod(int(dim) for dim in dims) * tvm.DataType(str(ty.dtype)).itemsize
