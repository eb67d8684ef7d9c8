"""Replay a memory plan: what the VM's allocator holds before and after each kernel of one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from autocast import ir
from autocast.kernels.poison import is_poisoning
from autocast.kernels.state.tensors import VIEWS
from autocast.vm.sizes import evaluate_all, tensor_bytes
from autocast.vm.workspace import sizes_of_call, workspace_bytes

#: The VM's pooled allocator rounds blocks to pages and reuses a freed block for an equal number of pages only.
PAGE = 4096


@dataclass(frozen=True)
class Step:
    """Memory while one kernel runs, in bytes; parameters, inputs and constants are not in it.

    Attributes
    ----------
    name : str
        The kernel's name, or the packed function's.
    live : int
        Storages that some tensor still needs, the kernel's outputs among them.
    reserved : int
        What the pooled allocator took from the system so far: it keeps blocks that are free again.
    workspace : int
        Temporary memory inside the kernel.
    """

    name: str
    live: int
    reserved: int
    workspace: int


@dataclass(eq=False, frozen=True)
class _Block:
    """One storage; compared by identity."""

    size: int


class Replay:
    """Runs through `main` of a planned module as the VM does, following allocations and releases only.

    Attributes
    ----------
    steps : list of Step
        One for each kernel call, in order.
    unknown : int
        Allocations whose size depends on data: they are counted as nothing.
    """

    def __init__(self, planned: tvm.IRModule, kernels: tvm.IRModule, threads: int) -> None:
        self.steps: list[Step] = []
        self.unknown = 0
        self._planned = planned
        self._kernels = {gv.name_hint: function for gv, function in kernels.functions.items()}
        self._threads = threads
        self._frames: list[dict[relax.Var, Any]] = []
        self._free: Counter[int] = Counter()
        self._live: set[_Block] = set()
        self._reserved = 0

    def run(self, shapes: Sequence[tuple[int, ...]]) -> Replay:
        """Replay one call of `main` with arguments (parameters among them) of these shapes; returns itself."""
        main = self._planned["main"]
        sizes: dict[tirx.Var, int] = {}
        for param, shape in zip(main.params, shapes, strict=True):
            _bind_shape(param.ty, shape, sizes)
        self._function(main, [], sizes)
        return self

    def _function(self, function: relax.Function, args: list[Any], sizes: dict[tirx.Var, int]) -> Any:
        self._frames.append(dict(zip(function.params, args, strict=False)))
        result = self._sequence(function.body, sizes)
        self._frames.pop()
        self._release(kept=result)
        return result

    def _sequence(self, body: relax.Expr, sizes: dict[tirx.Var, int]) -> Any:
        for block in body.blocks:
            for binding in block.bindings:
                self._frames[-1][binding.var] = self._value(binding.value, sizes)
                if isinstance(binding, relax.MatchCast):
                    _bind_shape(binding.ty, evaluate_all(ir.shape_of(binding.value) or (), sizes), sizes)
        return self._value(body.body, sizes)

    def _value(self, expr: relax.Expr, sizes: dict[tirx.Var, int]) -> Any:
        """What `expr` holds on to: a block, a tuple of such values, or None."""
        if isinstance(expr, relax.Var):
            return self._frames[-1].get(expr)
        if isinstance(expr, relax.Tuple):
            return tuple(self._value(field, sizes) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            fields = self._value(expr.tuple_value, sizes)
            return fields[expr.index] if isinstance(fields, tuple) else fields
        if isinstance(expr, relax.If):
            return self._larger_branch(expr, sizes)
        return self._call(expr, sizes) if isinstance(expr, relax.Call) else None

    def _call(self, call: relax.Call, sizes: dict[tirx.Var, int]) -> Any:
        name = ir.op_name(call)
        if name == "relax.memory.alloc_storage":
            return self._allocate(evaluate_all(call.args[0].values, sizes), "uint8")
        if name in ("relax.memory.kill_storage", "relax.memory.kill_tensor", "relax.vm.kill_object"):
            self._frames[-1].pop(call.args[0], None)
            return self._release()
        if name == "relax.memory.alloc_tensor" or name in VIEWS:
            return self._value(call.args[0], sizes)
        if isinstance(call.op, relax.GlobalVar) and isinstance(self._planned[call.op], relax.Function):
            callee = self._planned[call.op]
            inner: dict[tirx.Var, int] = {}
            for param, arg in zip(callee.params, call.args, strict=True):
                _bind_shape(param.ty, evaluate_all(ir.shape_of(arg) or (), sizes), inner)
            return self._function(callee, [self._value(arg, sizes) for arg in call.args], inner)
        result = None
        if name is None and isinstance(call.ty, relax.TensorType):  # a packed function that allocates its own result
            shape = ir.shape_of(call)
            result = self._allocate(None if shape is None else evaluate_all(shape, sizes), call.ty.dtype)
        if name == "relax.vm.call_tir_dyn":  # a kernel that also takes sizes
            self._record(call.args[0], call.args[1].fields, sizes)
        elif name is None and not is_poisoning(call):
            self._record(call.op, call.args, sizes)
        return result

    def _record(self, callee: relax.Expr, args: Sequence[relax.Expr], sizes: dict[tirx.Var, int]) -> None:
        name = callee.name_hint if isinstance(callee, relax.GlobalVar) else str(callee.global_symbol)
        kernel = self._kernels.get(name)
        workspace = 0
        if kernel is not None:
            shapes = [evaluate_all(ir.shape_of(arg) or (), sizes) or () for arg in args if ir.is_tensor(arg)]
            workspace = workspace_bytes(kernel, sizes_of_call(kernel, shapes), self._threads)
        live = sum(block.size for block in self._live)
        self.steps.append(Step(name, live, self._reserved, workspace))

    def _allocate(self, shape: tuple[int, ...] | None, dtype: object) -> _Block:
        self.unknown += shape is None
        pages = -(-tensor_bytes(shape or (0,), dtype) // PAGE) * PAGE
        if self._free[pages]:
            self._free[pages] -= 1
        else:
            self._reserved += pages
        block = _Block(pages)
        self._live.add(block)
        return block

    def _release(self, kept: Any = None) -> None:
        """Give blocks that nothing refers to any more back to the pool."""
        reached = set(_blocks(kept))
        for frame in self._frames:
            for value in frame.values():
                reached.update(_blocks(value))
        for block in self._live - reached:
            self._free[block.size] += 1
        self._live &= reached

    def _larger_branch(self, branch: relax.If, sizes: dict[tirx.Var, int]) -> Any:
        """Replay both branches and go on with the one that reserves more."""
        other = copy(self)
        other.steps, other._free, other._live = list(self.steps), copy(self._free), set(self._live)
        other._frames = [dict(frame) for frame in self._frames]
        result = self._sequence(branch.true_branch, sizes)
        result_of_other = other._sequence(branch.false_branch, sizes)
        if other._reserved > self._reserved:
            self.__dict__.update(other.__dict__)
            return result_of_other
        return result


def _blocks(value: Any) -> Iterator[_Block]:
    if isinstance(value, _Block):
        yield value
    elif isinstance(value, tuple):
        for field in value:
            yield from _blocks(field)


def _bind_shape(ty: tvm.ir.Type, shape: tuple[int, ...] | None, sizes: dict[tirx.Var, int]) -> None:
    """Learn the symbolic dimensions of a tensor type from the shape that one of its values has."""
    if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
        for dimension, size in zip(ty.shape.values, shape or (), strict=False):
            if isinstance(dimension, tirx.Var):
                sizes.setdefault(dimension, size)
