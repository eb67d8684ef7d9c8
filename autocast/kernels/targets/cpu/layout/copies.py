"""Copies of rows: whole, or converted on the way."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64
from autocast.kernels.storage import BITS
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, flat

# Line after line, and what is left by `memcpy`, which is slower for all of it.
_COPY = """
define linkonce_odr void @NAME(ptr %dst, ptr %src, ptr %end) alwaysinline {
start:
  %first = ptrtoint ptr %dst to i64
  %past = ptrtoint ptr %end to i64
  %bytes = sub i64 %past, %first
  %whole = and i64 %bytes, -64
  %some = icmp ne i64 %whole, 0
  br i1 %some, label %lines, label %rest
lines:
  %at = phi i64 [0, %start], [%next, %lines]
  %from = getelementptr i8, ptr %src, i64 %at
  %to = getelementptr i8, ptr %dst, i64 %at
  %line = load <16 x i32>, ptr %from, align 1
  store <16 x i32> %line, ptr %to, STORE
  %next = add i64 %at, 64
  %more = icmp ult i64 %next, %whole
  br i1 %more, label %lines, label %rest
rest:
  %rest.from = getelementptr i8, ptr %src, i64 %whole
  %rest.to = getelementptr i8, ptr %dst, i64 %whole
  %rest.bytes = and i64 %bytes, 63
  call void @llvm.memcpy.p0.p0.i64(ptr %rest.to, ptr %rest.from, i64 %rest.bytes, i1 false)
  ret void
}
"""

#: LLVM IR that `copy_row` calls.
COPY_IR = "".join(
    [
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        _COPY.replace("NAME", "autocast_copy").replace("STORE", "align 1"),
        _COPY.replace("NAME", "autocast_copy_streamed").replace("STORE", "align 64, !nontemporal !{i32 1}"),
    ]
)

#: Vectors that are converted in one turn of a loop.
_UNROLL = 4


class Memory:
    """A tensor's memory: as numbers of its dtype for what converts, as integers of that width for what does not."""

    def __init__(self, buffer: tirx.Buffer) -> None:
        self.dtype = str(buffer.dtype)
        self.numbers = flat(buffer)
        self.bits = flat(buffer, f"int{BITS[self.dtype]}")


def copy_row(
    unit: VectorUnit, source: Memory, read: Any, target: Memory, write: Any, count: Extent, *, streamed: bool = False
) -> None:
    """Emit the copy of `count` elements from `read` in `source` on to `write` in `target`.

    It may be `streamed`, past the caches, to places that are aligned to 64 bytes.
    """
    if source.dtype == target.dtype:
        # Where it ends, not how much: TVM narrows numbers, and gets those of more than 2^31 bytes wrong.
        ends = ((target, write), (source, read), (target, write + count))
        places = [T.address_of(memory.bits[place]) for memory, place in ends]
        T.evaluate(tirx.call_extern("void", "autocast_copy_streamed" if streamed else "autocast_copy", *places))
        return
    lanes = unit.lanes
    step = _UNROLL * lanes
    read, write = T.bind(i64(read)), T.bind(i64(write))

    def vector(place: Any, rest: Any = None) -> None:
        value = unit.load(source.numbers, read + place, rest)
        unit.store(target.numbers, write + place, value, rest, streamed=streamed)

    if not isinstance(count, int) or count >= step:
        with T.serial(0, i64(count // step)) as turn:
            for slot in range(_UNROLL):
                vector(turn * step + slot * lanes)
    if isinstance(count, int):
        for place in range(count // step * step, count // lanes * lanes, lanes):
            vector(i64(place))
        if count % lanes:
            vector(i64(count // lanes * lanes), i64(count % lanes))
        return
    with T.serial(i64(count // step * _UNROLL), i64(count // lanes)) as turn:
        vector(turn * lanes)
    vector(count // lanes * lanes, count % lanes)


def copy_element(unit: VectorUnit, source: Memory, read: Any, target: Memory, write: Any) -> None:
    """Emit the copy of one element."""
    if source.dtype == target.dtype:
        T.buffer_store(target.bits, source.bits[read], [write])
    else:
        unit.store(target.numbers, write, unit.load(source.numbers, read, 1), 1)
