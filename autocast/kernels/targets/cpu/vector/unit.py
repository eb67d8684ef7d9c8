"""TIR expressions and statements for one vector of float32 numbers: loads that widen, stores that narrow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from autocast import settings
from autocast.kernels.backend import rooted
from autocast.kernels.extents import Extent, i32, i64
from autocast.kernels.targets.cpu.instruction_sets import InstructionSet


def flat(buffer: tirx.Buffer, dtype: str | None = None, ratio: int = 1) -> tirx.Buffer:
    """The same memory as a vector of `dtype`, an element of which covers `ratio` elements of `buffer`."""
    size = math.prod(buffer.shape)
    return T.decl_buffer((size // ratio,), dtype or str(buffer.dtype), data=buffer.data)


class VectorUnit:
    """Emits code for the vectors of one instruction set; needs `llvm_ir.conversions_and_accesses` imported."""

    def __init__(self, isa: InstructionSet) -> None:
        self.isa = isa
        self.lanes = isa.lanes
        self.dtype = f"float32x{isa.lanes}"

    def ramp(self, start: Extent) -> tirx.Expr:
        """Indices start, start + 1 and so on, one for each lane."""
        return T.ramp(i64(start), 1, self.lanes)

    def numbers(self, start: Extent) -> tirx.Expr:
        """The float32 numbers start, start + 1 and so on, exact up to 2^24."""
        first = tirx.const(start, "int32") if isinstance(start, int) else start.astype("int32")
        return T.ramp(first, 1, self.lanes).astype(self.dtype)

    def words(self, start: Extent) -> tirx.Expr:
        """The integers start, start + 1 and so on, modulo 2^32, as the bits of float32 numbers."""
        first = tirx.const(start, "int32") if isinstance(start, int) else start.astype("int32")
        return tirx.reinterpret(self.dtype, T.ramp(first, 1, self.lanes))

    def word(self, value: tirx.Expr) -> tirx.Expr:
        """An int32 as the bits of every lane."""
        return tirx.reinterpret(self.dtype, T.broadcast(value, self.lanes))

    def splat(self, value: float | tirx.Expr) -> tirx.Expr:
        """A vector of equal numbers."""
        scalar = tirx.const(value, "float32") if isinstance(value, float | int) else value
        return T.broadcast(scalar, self.lanes)

    def load(self, buffer: tirx.Buffer, index: Extent, count: Extent | None = None) -> tirx.Expr:
        """Elements `index`, ... of a flat buffer as float32; from the `count`-th on they are 0 and not read."""
        if count is None and str(buffer.dtype) == "float32":
            return buffer[self.ramp(index)]
        arguments = [T.address_of(buffer[i64(index)])] + ([] if count is None else [i32(count)])
        return tirx.call_extern(self.dtype, self._name("load", buffer, count), *arguments)

    def scalar(self, buffer: tirx.Buffer, index: Extent) -> tirx.Expr:
        """Element `index` of a flat buffer as a float32 number."""
        if str(buffer.dtype) == "float32":
            return buffer[i64(index)]
        address = T.address_of(buffer[i64(index)])
        return tirx.call_extern("float32", f"autocast_scalar_{buffer.dtype}", address)

    def store(
        self,
        buffer: tirx.Buffer,
        index: Extent,
        value: tirx.Expr,
        count: Extent | None = None,
        *,
        streamed: bool = False,
        exactly: bool = False,
    ) -> None:
        """Store a float32 vector in the dtype of a flat buffer; only the first `count` lanes where a count is given.

        Whole vectors may be `streamed`: stored past the caches, to an index that is a multiple of the lanes, by a loop
        of `shared_loop`. Subnormal numbers of bfloat16 may become 0, unless they are stored `exactly`.
        """
        if count is None and str(buffer.dtype) == "float32" and not streamed:
            T.buffer_store(buffer, value, [self.ramp(index)])
            return
        verb = "stream" if streamed and count is None else "store"
        name = self._name(verb, buffer, count, exactly=exactly and str(buffer.dtype) == "bfloat16")
        arguments = [T.address_of(buffer[i64(index)]), value] + ([] if count is None else [i32(count)])
        T.evaluate(tirx.call_extern("void", name, *arguments))

    def once(self, value: tirx.Expr) -> tirx.Expr:
        """A float32 vector to bind where several read it: TIR's simplifier would compute it for each of them."""
        return tirx.call_extern(self.dtype, "autocast_once", value)

    def multiply_add(self, a: tirx.Expr, b: tirx.Expr, c: tirx.Expr) -> tirx.Expr:
        """`a * b + c` of float32 vectors, fused where the target fuses."""
        return tirx.call_llvm_pure_intrin(self.dtype, "llvm.fmuladd", a, b, c)

    def dot_pairs(self, a: tirx.Expr, b: tirx.Expr, c: tirx.Expr) -> tirx.Expr:
        """`c` plus, for each lane, both products of a pair of bfloat16 in `a` with the pair in `b` (int32 vectors)."""
        return tirx.call_pure_extern(self.dtype, "autocast_dot", c, a, b)

    def scratch(self, size: Extent, dtype: str) -> tirx.Buffer:
        """A flat buffer that TIR's CompactBufferAllocation leaves alone.

        The pass would shrink it to the part that it sees being accessed, and takes a second to find that out where
        extents are symbolic. So all of it is marked as used, and accesses go through a second name.
        """
        buffer = T.alloc_buffer((size,), dtype)
        T.evaluate(tirx.call_extern("void", "autocast_touch", buffer.data))
        if settings.debug().poison:
            size_bytes = i64(size) * tvm.DataType(dtype).itemsize
            T.evaluate(tirx.call_extern("handle", "memset", buffer.data, i32(0xFF), size_bytes))
        return T.decl_buffer((size,), dtype, data=buffer.data)

    def opaque(self, extent: Extent) -> Extent:
        """`extent` itself, of which TIR's passes see nothing: they take seconds to divide what is made of others."""
        return extent if isinstance(extent, int) else T.bind(tirx.call_extern("int64", "autocast_same", i64(extent)))

    def prefetch(self, buffer: tirx.Buffer, index: Extent) -> None:
        """Fetch the cache line that element `index` of a flat buffer is in; it may lie outside the buffer.

        It goes to the second cache: the first keeps what is being computed with, and waits for few lines at a time.
        """
        options = [tirx.const(option, "int32") for option in (0, 2, 1)]  # to read, into the second cache, of data
        T.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", T.address_of(buffer[i64(index)]), *options))

    def fence(self, buffer: tirx.Buffer) -> None:
        """Keep LLVM from moving memory accesses past here, or from keeping what is in `buffer` in registers across."""
        T.evaluate(tirx.call_extern("void", "autocast_fence", buffer.data))

    @staticmethod
    def _name(verb: str, buffer: tirx.Buffer, count: Extent | None, *, exactly: bool = False) -> str:
        return f"autocast_{verb}_{buffer.dtype}" + "_exactly" * exactly + "_part" * (count is not None)


@contextmanager
def shared_loop(count: Extent, *, streams: bool = False) -> Iterator[tirx.Var]:
    """A loop whose steps the cores share; each lets the others see what it stored past the caches, if it `streams`."""
    # What is around the loop runs on every core. TVM takes a loop of one step apart, and then finds none to launch.
    shared = not (isinstance(count, int) and count == 1)
    launches = streams and shared
    with T.attr(tirx.const(0, "int32"), "pragma_parallel_launch_point", True) if launches else nullcontext():
        with (T.parallel if shared else T.serial)(0, i64(count)) as index:
            yield index
        if streams:
            T.evaluate(tirx.call_extern("void", "autocast_drain"))


@contextmanager
def kernel_function(name: str) -> Iterator[Callable[[], tirx.PrimFunc]]:
    """Emit the arguments and the body of a kernel in here; what this gives returns the TIR function afterwards.

    The function is fit for `relax.call_tir`. Its attributes are `op_pattern` = 8 (opaque: nothing is fused into it),
    `autocast.scheduled` (no schedule is wanted) and `tirx.noalias`.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_attr({"global_symbol": name, "tirx.noalias": True, "op_pattern": 8, "autocast.scheduled": True})
        yield lambda: rooted(builder.get())


def importing(code: str) -> AbstractContextManager[None]:
    """What is emitted in here may call the functions of some LLVM IR."""
    return T.attr(tirx.const(0, "int32"), "pragma_import_llvm", code)


def either(condition: tirx.Expr | None, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
    """Emit `then` where `condition` holds (always, if there is none), else `otherwise`."""
    if condition is None:
        then()
        return
    with T.If(condition):
        with T.Then():
            then()
        if otherwise is not None:
            with T.Else():
                otherwise()
