"""The temporary memory that a compiled kernel takes while it runs, read off its final loops."""

from __future__ import annotations

import tvm
from tvm import tirx

from autocast.vm.sizes import Sizes, evaluate, evaluate_all, tensor_bytes

#: Buffers of a known size below this many bytes live on the stack (TVM's `kMaxStackAlloca`).
STACK_BYTES = 1024

#: TVM's workspace pool hands out whole pages.
PAGE = 4096


def workspace_bytes(kernel: tirx.PrimFunc, sizes: Sizes, threads: int) -> int:
    """Bytes of workspace that `kernel` holds at its peak.

    Parameters
    ----------
    kernel : PrimFunc
        As code generation receives it (`CompiledProgram.kernels`).
    sizes : mapping of tirx.Var to int
        The kernel's own symbolic sizes: see `sizes_of_call`.
    threads : int
        Each thread that runs iterations of a parallel loop has workspaces of its own.
    """
    return _Peak(dict(sizes), threads).of(kernel.body)


def sizes_of_call(kernel: tirx.PrimFunc, shapes: list[tuple[int, ...]]) -> dict[tirx.Var, int]:
    """The kernel's symbolic sizes where its buffers have `shapes`, in the order of its parameters."""
    sizes: dict[tirx.Var, int] = {}
    buffers = [param for param in kernel.params if isinstance(param.ty, tirx.buffer.BufferType)]
    for buffer, shape in zip(buffers, shapes, strict=False):
        for dimension, size in zip(buffer.shape, shape, strict=False):
            if isinstance(dimension, tirx.Var):
                sizes.setdefault(dimension, size)
    return sizes


class _Peak:
    """Walks statements; a buffer lives from its allocation to the end of the enclosing sequence."""

    def __init__(self, sizes: dict[tirx.Var, int], threads: int) -> None:
        self.sizes = sizes
        self.threads = threads

    def of(self, stmt: tvm.ir.Object | None) -> int:
        if isinstance(stmt, tirx.SeqStmt):
            live = peak = 0
            for child in stmt.seq:
                if isinstance(child, tirx.AllocBuffer):
                    live += self._allocated(child.buffer)
                    peak = max(peak, live)
                else:
                    peak = max(peak, live + self.of(child))
            return peak
        if isinstance(stmt, tirx.Bind):
            value = evaluate(stmt.value, self.sizes)
            if value is not None:
                self.sizes[stmt.var] = value
            return 0
        if isinstance(stmt, tirx.For):
            inside = self.of(stmt.body)
            if inside and stmt.kind == tirx.ForKind.PARALLEL:
                extent = evaluate(stmt.extent, self.sizes)
                return inside * (self.threads if extent is None else min(self.threads, extent))
            return inside
        if isinstance(stmt, tirx.IfThenElse):
            return max(self.of(stmt.then_case), self.of(stmt.else_case))
        if isinstance(stmt, tirx.While | tirx.AttrStmt):
            return self.of(stmt.body)
        return self._allocated(stmt.buffer) if isinstance(stmt, tirx.AllocBuffer) else 0

    def _allocated(self, buffer: tirx.Buffer) -> int:
        shape = evaluate_all(buffer.shape, self.sizes)
        if shape is None:
            return 0
        size = tensor_bytes(shape, buffer.dtype)
        constant = all(isinstance(dimension, tirx.IntImm) for dimension in buffer.shape)
        return 0 if constant and size < STACK_BYTES else -(-size // PAGE) * PAGE
