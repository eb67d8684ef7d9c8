"""A planned Relax function as the steps that matter to memory: see `autocast.runtime.program.Function`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from autocast import ir
from autocast.kernels.state.tensors import RELEASES, VIEWS
from autocast.runtime.program import Function
from autocast.vm.dimensions import Dimensions

_RELEASES = (*RELEASES, "relax.vm.kill_object")


def described(mod: tvm.IRModule, function: relax.Function) -> Function:
    """The steps of a function of a module whose memory is planned."""
    return _Describer(mod, function).function()


class _Describer:
    """Numbers variables in the order in which they are bound, parameters first."""

    def __init__(self, mod: tvm.IRModule, function: relax.Function) -> None:
        self.mod = mod
        self.described = function
        self.numbers: dict[relax.Var, int] = {param: number for number, param in enumerate(function.params)}
        self.dimensions = Dimensions()

    def function(self) -> Function:
        params = tuple(self.dimensions.declared(_named(param.ty)) for param in self.described.params)
        steps = self.sequence(self.described.body)
        return Function(params, steps, self.value(self.described.body.body))

    def sequence(self, body: relax.SeqExpr) -> list[Any]:
        steps: list[Any] = []
        for block in body.blocks:
            for binding in block.bindings:
                steps += self.binding(self.numbers.setdefault(binding.var, len(self.numbers)), binding.value)
                if isinstance(binding, relax.MatchCast) and (names := _named(binding.ty)):
                    shape = self.shape(ir.shape_of(binding.value))
                    steps.append(("match", shape, self.dimensions.declared(names)))
        return steps

    def value(self, expr: relax.Expr) -> Any:
        """A variable's number, a list of values, or None for what holds on to no storage."""
        if isinstance(expr, relax.Tuple):
            return [self.value(field) for field in expr.fields]
        return self.numbers.get(expr) if isinstance(expr, relax.Var) else None

    def binding(self, number: int, expr: relax.Expr) -> list[Any]:
        if isinstance(expr, relax.Var | relax.Tuple):
            return [("is", number, self.value(expr))]
        if isinstance(expr, relax.TupleGetItem):
            return [("field", number, self.value(expr.tuple_value), expr.index)]
        if isinstance(expr, relax.If):
            branches = (expr.true_branch, expr.false_branch)
            parts = [part for branch in branches for part in (self.sequence(branch), self.value(branch.body))]
            return [("branch", number, *parts)]
        return self.call(number, expr) if isinstance(expr, relax.Call) else []

    def call(self, number: int, call: relax.Call) -> list[Any]:
        name = ir.op_name(call)
        if name == "relax.memory.alloc_storage":
            size = call.args[0]  # where a module is written by hand, also a tuple or a variable
            sizes = size.values if isinstance(size, relax.ShapeExpr) else getattr(size, "fields", None)
            return [("allocate", number, self.shape(sizes), "uint8")]
        if name in _RELEASES:
            return [("release", self.value(call.args[0]))]
        if name == "relax.memory.alloc_tensor" or name in VIEWS:
            return [("is", number, self.value(call.args[0]))]
        if isinstance(call.op, relax.GlobalVar) and isinstance(self.mod[call.op], relax.Function):
            values, shapes = [self.value(arg) for arg in call.args], [self.shape(ir.shape_of(arg)) for arg in call.args]
            return [("call", number, call.op.name_hint, values, shapes)]
        steps: list[Any] = []
        if name is None and isinstance(call.ty, relax.TensorType):  # a packed function that allocates its own result
            steps.append(("allocate", number, self.shape(ir.shape_of(call)), str(call.ty.dtype)))
        if name == "relax.vm.call_tir_dyn":  # a kernel that also takes sizes
            steps.append(self.kernel(call.args[0], call.args[1].fields))
        elif name is None:
            steps.append(self.kernel(call.op, call.args))
        return steps

    def kernel(self, callee: relax.Expr, args: Sequence[relax.Expr]) -> tuple[Any, ...]:
        name = callee.name_hint if isinstance(callee, relax.GlobalVar) else str(callee.global_symbol)
        return ("kernel", name, [self.shape(ir.shape_of(arg)) for arg in args if ir.is_tensor(arg)])

    def shape(self, dimensions: Sequence[Any] | None) -> tuple[Any, ...] | None:
        """A shape whose sizes are known when it is needed; None where one depends on data, or there is none."""
        return None if dimensions is None else self.dimensions.shape(dimensions)


def _named(type: tvm.ir.Type) -> Sequence[Any]:
    """The dimensions of a tensor type."""
    is_shaped = isinstance(type, relax.TensorType) and isinstance(type.shape, relax.ShapeExpr)
    return tuple(type.shape.values) if is_shaped else ()
