"""What combines the vectors of a row into one number: accumulators, and the sum of a vector's lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i32
from autocast.kernels.targets.cpu.vector import llvm_ir, vector_math
from autocast.kernels.targets.cpu.vector.long_sums import add_block, corrected
from autocast.kernels.targets.cpu.vector.unit import VectorUnit

_INFINITY = float("inf")

# `nnan`, because the order of NaN would take more instructions than the reduction.
_LANES = """
declare float @llvm.vector.reduce.fmul.vLf32(float, <L x float>)
declare float @llvm.vector.reduce.fmax.vLf32(<L x float>)
declare float @llvm.vector.reduce.fmin.vLf32(<L x float>)
declare i1 @llvm.vector.reduce.or.vLi1(<L x i1>)
define linkonce_odr float @autocast_product(<L x float> %x) alwaysinline {
  %r = call reassoc float @llvm.vector.reduce.fmul.vLf32(float 1.0, <L x float> %x)
  ret float %r
}
define linkonce_odr float @autocast_highest(<L x float> %x) alwaysinline {
  %n = fcmp uno <L x float> %x, zeroinitializer
  %y = select <L x i1> %n, <L x float> splat (float 0xFFF0000000000000), <L x float> %x
  %r = call nnan float @llvm.vector.reduce.fmax.vLf32(<L x float> %y)
  ret float %r
}
define linkonce_odr float @autocast_lowest(<L x float> %x) alwaysinline {
  %n = fcmp uno <L x float> %x, zeroinitializer
  %y = select <L x i1> %n, <L x float> splat (float 0x7FF0000000000000), <L x float> %x
  %r = call nnan float @llvm.vector.reduce.fmin.vLf32(<L x float> %y)
  ret float %r
}
define linkonce_odr float @autocast_or_nan(float %x, <L x float> %all) alwaysinline {
  %n = fcmp uno <L x float> %all, zeroinitializer
  %any = call i1 @llvm.vector.reduce.or.vLi1(<L x i1> %n)
  %r = select i1 %any, float 0x7FF8000000000000, float %x
  ret float %r
}
define linkonce_odr float @autocast_maximum(<L x float> %x) alwaysinline {
  %m = call float @autocast_highest(<L x float> %x)
  %r = call float @autocast_or_nan(float %m, <L x float> %x)
  ret float %r
}
define linkonce_odr float @autocast_minimum(<L x float> %x) alwaysinline {
  %m = call float @autocast_lowest(<L x float> %x)
  %r = call float @autocast_or_nan(float %m, <L x float> %x)
  ret float %r
}
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define linkonce_odr void @autocast_prefetch(ptr %p) alwaysinline {
  call void @llvm.prefetch.p0(ptr %p, i32 0, i32 2, i32 1)
  ret void
}
define linkonce_odr void @autocast_prefetch_to_write(ptr %p) alwaysinline {
  call void @llvm.prefetch.p0(ptr %p, i32 1, i32 2, i32 1)
  ret void
}
define linkonce_odr float @autocast_last(<L x float> %x) alwaysinline {
  %r = extractelement <L x float> %x, i64 LAST
  ret float %r
}
"""


def lanes_ir(lanes: int) -> str:
    """LLVM IR of the functions that row kernels call: what combines the lanes of a vector, and prefetches."""
    return llvm_ir.expand(_LANES.replace("LAST", str(lanes - 1)), lanes) + _running_sum(lanes)


def _running_sum(lanes: int) -> str:
    """The sum of each lane and those before it, in log2(lanes) steps."""
    lines, current, distance = [], "%x", 1
    while distance < lanes:
        order = ", ".join(f"i32 {i - distance if i >= distance else lanes}" for i in range(lanes))
        lines += [
            f"  %s{distance} = shufflevector <{lanes} x float> {current}, <{lanes} x float> zeroinitializer, "
            f"<{lanes} x i32> <{order}>",
            f"  %t{distance} = fadd <{lanes} x float> {current}, %s{distance}",
        ]
        current, distance = f"%t{distance}", 2 * distance
    head = f"define linkonce_odr <{lanes} x float> @autocast_running_sum(<{lanes} x float> %x) alwaysinline {{\n"
    return head + "\n".join(lines) + f"\n  ret <{lanes} x float> {current}\n}}\n"


@dataclass(frozen=True)
class Reduction:
    """How values are combined: what changes nothing, two vectors, and the lanes of one (an LLVM function's name)."""

    neutral: float
    combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
    lanes: str


_MAXIMUM = Reduction(-_INFINITY, lambda a, b: vector_math.call("maximum", a, b), "autocast_maximum")
_MINIMUM = Reduction(_INFINITY, lambda a, b: vector_math.call("minimum", a, b), "autocast_minimum")

#: Reductions of one accumulator.
SIMPLE = {
    "row_sum": Reduction(0.0, lambda a, b: a + b, "autocast_sum"),
    "row_product": Reduction(1.0, lambda a, b: a * b, "autocast_product"),
    "row_highest": Reduction(-_INFINITY, tirx.max, "autocast_highest"),
    "row_maximum": _MAXIMUM,
    "row_minimum": _MINIMUM,
}
#: The place of the first of the largest or smallest values: what is best, and whether a value is better than another.
PLACES = {
    "row_argmax": (_MAXIMUM, lambda a, b: a > b),
    "row_argmin": (_MINIMUM, lambda a, b: a < b),
}
#: The `vector_math` functions that the above call.
CALLED = {
    "row_maximum": ("maximum",),
    "row_minimum": ("minimum",),
    "row_argmax": ("maximum", "minimum", "isnan"),
    "row_argmin": ("minimum", "isnan"),
}


class Accumulator:
    """Emits one reduction of a row into `slots` independent vectors, so that additions need not wait for each other.

    A sum of a `long` row is one of blocks, each of which `end_block` ends.
    """

    def __init__(self, function: str, unit: VectorUnit, slots: int, *, long: bool = False) -> None:
        self.function, self.unit, self.slots = function, unit, slots
        self.reduction = PLACES[function][0] if function in PLACES else SIMPLE[function]
        self.values = self._vectors(self.reduction.neutral, slots)
        self.places = self._vectors(_INFINITY, slots) if function in PLACES else None
        self.blocks = self._vectors(0.0, 2) if long and function == "row_sum" else None

    def _vectors(self, initial: float, count: int) -> list[tirx.Buffer]:
        buffers = [T.alloc_buffer((self.unit.lanes,), "float32") for _ in range(count)]
        for buffer in buffers:
            T.buffer_store(buffer, self.unit.splat(initial), [self.unit.ramp(0)])
        return buffers

    def add(self, vector: tirx.Expr, column: Extent, count: Extent | None, slot: int) -> None:
        """Emit that a vector is combined into a slot; from the `count`-th on its lanes are left out."""
        at, values = self.unit.ramp(0), self.values[slot]
        if count is not None:
            vector = _first(self.unit, vector, count, self.reduction.neutral)
        if self.places is None:
            T.buffer_store(values, self.reduction.combine(values[at], vector), [at])
            return
        best, places = values[at], self.places[slot]
        place = self.unit.numbers(column)
        found = places[at]
        better = PLACES[self.function][1](vector, best)
        # An infinity may be all there is: then the first place counts. NaN is better than any number.
        better = tirx.any(better, _is_nan(vector) > _is_nan(best), tirx.all(vector == best, place < found))
        if count is not None:
            place = _first(self.unit, place, count, _INFINITY)
        best, found = (
            T.bind(self.unit.once(tirx.Select(better, new, old))) for new, old in ((vector, best), (place, found))
        )
        T.buffer_store(values, best, [at])
        T.buffer_store(places, found, [at])

    def end_block(self) -> None:
        """Emit that what was added so far is a block."""
        if self.blocks is not None:
            at, (total, lost) = self.unit.ramp(0), self.blocks
            block = self._vector([buffer[at] for buffer in self.values], self.reduction)
            add_block(self.unit, total, lost, at, block)
            for buffer in self.values:
                T.buffer_store(buffer, self.unit.splat(0.0), [at])

    def finish(self) -> tirx.Expr:
        """Emit what all slots and lanes combine to: a float32 number."""
        values = [buffer[self.unit.ramp(0)] for buffer in self.values]
        if self.blocks is not None:
            total, lost = (buffer[self.unit.ramp(0)] for buffer in self.blocks)
            values.append(corrected(self.unit, total, lost))
        result = self._combined(values, self.reduction)
        if self.places is None:
            return result
        best = self.unit.splat(result)
        candidates = []
        for value, buffer in zip(values, self.places, strict=True):
            here = tirx.any(value == best, _is_nan(value) > self.unit.splat(0.0))
            place = buffer[self.unit.ramp(0)]
            candidates.append(tirx.Select(here, place, self.unit.splat(_INFINITY)))
        return self._combined(candidates, _MINIMUM)

    def _combined(self, vectors: list[tirx.Expr], reduction: Reduction) -> tirx.Expr:
        return T.bind(tirx.call_extern("float32", reduction.lanes, self._vector(vectors, reduction)))

    def _vector(self, vectors: list[tirx.Expr], reduction: Reduction) -> tirx.Expr:
        while len(vectors) > 1:
            pairs = zip(vectors[::2], vectors[1::2], strict=False)
            odd = vectors[-1:] if len(vectors) % 2 else []
            vectors = [reduction.combine(a, b) for a, b in pairs] + odd
        return vectors[0]


def _is_nan(vector: tirx.Expr) -> tirx.Expr:
    """1 or 0; TIR would simplify `x != x`."""
    return vector_math.call("isnan", vector)


def _first(unit: VectorUnit, vector: tirx.Expr, count: Extent, rest: float) -> tirx.Expr:
    """The first `count` lanes of a vector, and `rest` in the others."""
    inside = T.ramp(tirx.const(0, "int32"), 1, unit.lanes) < T.broadcast(i32(count), unit.lanes)
    return tirx.Select(inside, vector, unit.splat(rest))
