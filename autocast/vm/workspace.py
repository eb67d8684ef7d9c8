"""The temporary memory that a compiled kernel takes while it runs, read off its final loops."""

from __future__ import annotations

import tvm
from tvm import tirx

from autocast.runtime.plan import PAGE
from autocast.runtime.program import THREADS
from autocast.runtime.sizes import Size, bits_of, computed, product
from autocast.vm.dimensions import Dimensions

#: Buffers of a known size below this many bytes live on the stack (TVM's `kMaxStackAlloca`).
STACK_BYTES = 1024


def workspace(kernel: tirx.PrimFunc, dimensions: Dimensions) -> Size:
    """Bytes of workspace that `kernel` holds at its peak, in terms of its symbolic sizes and of `threads`.

    Parameters
    ----------
    kernel : PrimFunc
        As code generation receives it.
    dimensions : Dimensions
        The names of its symbolic sizes.
    """
    return _Peak(dimensions).of(kernel.body)


class _Peak:
    """Walks statements; a buffer lives from its allocation to the end of the enclosing sequence."""

    def __init__(self, dimensions: Dimensions) -> None:
        self.dimensions = dimensions

    def of(self, stmt: tvm.ir.Object | None) -> Size:
        if isinstance(stmt, tirx.SeqStmt):
            live: Size = 0
            peak: Size = 0
            for child in stmt.seq:
                if isinstance(child, tirx.AllocBuffer):
                    live = computed("+", live, self._allocated(child.buffer))
                    peak = _larger(peak, live)
                else:
                    inside = self.of(child)
                    peak = _larger(peak, computed("+", live, inside)) if inside != 0 else peak
            return peak
        if isinstance(stmt, tirx.Bind):
            value = self.dimensions.size(stmt.value)
            if value is not None:
                self.dimensions.declare(stmt.var, value)
            return 0
        if isinstance(stmt, tirx.For):
            inside = self.of(stmt.body)
            if inside != 0 and stmt.kind == tirx.ForKind.PARALLEL:
                extent = self.dimensions.size(stmt.extent)
                # Each thread that runs iterations of a parallel loop has workspaces of its own.
                return computed("*", inside, THREADS if extent is None else computed("min", THREADS, extent))
            return inside
        if isinstance(stmt, tirx.IfThenElse):
            return _larger(self.of(stmt.then_case), self.of(stmt.else_case))
        if isinstance(stmt, tirx.While | tirx.AttrStmt):
            return self.of(stmt.body)
        return self._allocated(stmt.buffer) if isinstance(stmt, tirx.AllocBuffer) else 0

    def _allocated(self, buffer: tirx.Buffer) -> Size:
        shape = self.dimensions.shape(buffer.shape)
        if shape is None:
            return 0
        bits = product(bits_of(str(buffer.dtype)), *shape)
        total = computed("//", computed("+", bits, 7), 8)
        if isinstance(total, int) and total < STACK_BYTES:
            return 0
        return computed("*", computed("//", computed("+", total, PAGE - 1), PAGE), PAGE)


def _larger(a: Size, b: Size) -> Size:
    if a == b or b == 0:  # sizes of memory: nothing is below 0
        return a
    return b if a == 0 else computed("max", a, b)
