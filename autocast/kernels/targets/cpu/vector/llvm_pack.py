"""LLVM IR that packs operands of matrix products into words of 32 bits, converting them on the way.

A word is what one step of the microkernel multiplies: a float32 number, or a pair of bfloat16 numbers that follow each
other along k. `across` reads a source whose rows run along k and transposes a square of `lanes` x `lanes` words in
registers; `along` reads a source whose rows run along n (or m) and interleaves two of them. Both write rows of words:
`dst[k][column]`. The `_part` forms read no element beyond the edges. What they write beyond the end of k is zero;
beyond the last column it is anything, since it only enters sums that are never stored.
"""

from __future__ import annotations

from functools import cache

from autocast.kernels.targets.cpu.instruction_sets import InstructionSet
from autocast.kernels.targets.cpu.vector.llvm_ir import expand
from autocast.kernels.targets.cpu.vector.llvm_transpose import transposed

#: What addresses of each storage dtype count in.
_ELEMENTS = {"float32": "float", "bfloat16": "i16", "float16": "i16", "bool": "i8"}

# One vector of words along k; FROM is the storage dtype, TO the compute dtype.
_WORDS_FLOAT32 = """
define linkonce_odr <L x i32> @autocast_words_FROM_float32(ptr %p) alwaysinline {
  %x = call <L x float> @autocast_load_FROM(ptr %p)
  %w = bitcast <L x float> %x to <L x i32>
  ret <L x i32> %w
}
define linkonce_odr <L x i32> @autocast_words_FROM_float32_part(ptr %p, i32 %n) alwaysinline {
  %x = call <L x float> @autocast_load_FROM_part(ptr %p, i32 %n)
  %w = bitcast <L x float> %x to <L x i32>
  ret <L x i32> %w
}
"""

_WORDS_BFLOAT16_BFLOAT16 = """
define linkonce_odr <L x i32> @autocast_words_bfloat16_bfloat16(ptr %p) alwaysinline {
  %w = load <L x i32>, ptr %p, align 2
  ret <L x i32> %w
}
define linkonce_odr <L x i32> @autocast_words_bfloat16_bfloat16_part(ptr %p, i32 %n) alwaysinline {
  %m = call <2L x i1> @autocast_mask2(i32 %n)
  %h = call <2L x i16> @llvm.masked.load.v2Li16.p0(ptr %p, i32 2, <2L x i1> %m, <2L x i16> zeroinitializer)
  %w = bitcast <2L x i16> %h to <L x i32>
  ret <L x i32> %w
}
"""

_WORDS_FLOAT32_BFLOAT16 = """
declare <2L x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<L x float>, <L x float>)
define linkonce_odr <L x i32> @autocast_narrow_words(<2L x float> %x) alwaysinline {
  %lo = shufflevector <2L x float> %x, <2L x float> poison, <L x i32> IOTA
  %hi = shufflevector <2L x float> %x, <2L x float> poison, <L x i32> UPPER
  %h = call <2L x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<L x float> %hi, <L x float> %lo)
  %w = bitcast <2L x bfloat> %h to <L x i32>
  ret <L x i32> %w
}
define linkonce_odr <L x i32> @autocast_words_float32_bfloat16(ptr %p) alwaysinline {
  %x = load <2L x float>, ptr %p, align 4
  %w = call <L x i32> @autocast_narrow_words(<2L x float> %x)
  ret <L x i32> %w
}
define linkonce_odr <L x i32> @autocast_words_float32_bfloat16_part(ptr %p, i32 %n) alwaysinline {
  %m = call <2L x i1> @autocast_mask2(i32 %n)
  %x = call <2L x float> @llvm.masked.load.v2Lf32.p0(ptr %p, i32 4, <2L x i1> %m, <2L x float> zeroinitializer)
  %w = call <L x i32> @autocast_narrow_words(<2L x float> %x)
  ret <L x i32> %w
}
"""

_ALONG_FLOAT32 = """
define linkonce_odr void @autocast_along_FROM_float32(ptr %src, i64 %stride, ptr %dst) alwaysinline {
  %w = call <L x i32> @autocast_words_FROM_float32(ptr %src)
  store <L x i32> %w, ptr %dst, align 4
  ret void
}
define linkonce_odr void @autocast_along_FROM_float32_part(ptr %src, i64 %stride, ptr %dst, i32 %columns, i32 %rows)
  alwaysinline {
  %one = icmp sgt i32 %rows, 0
  %columns1 = select i1 %one, i32 %columns, i32 0
  %w = call <L x i32> @autocast_words_FROM_float32_part(ptr %src, i32 %columns1)
  store <L x i32> %w, ptr %dst, align 4
  ret void
}
"""

_HALVES_BFLOAT16 = """
define linkonce_odr <L x i16> @autocast_halves_bfloat16(ptr %p) alwaysinline {
  %h = load <L x i16>, ptr %p, align 2
  ret <L x i16> %h
}
define linkonce_odr <L x i16> @autocast_halves_bfloat16_part(ptr %p, i32 %n) alwaysinline {
  %m = call <L x i1> @autocast_mask(i32 %n)
  %h = call <L x i16> @llvm.masked.load.vLi16.p0(ptr %p, i32 2, <L x i1> %m, <L x i16> zeroinitializer)
  ret <L x i16> %h
}
"""

_HALVES_FLOAT32 = """
define linkonce_odr <L x i16> @autocast_halves_float32(ptr %p) alwaysinline {
  %x = call <L x float> @autocast_load_float32(ptr %p)
  %h = call <L x i16> @autocast_narrow_bfloat16(<L x float> %x)
  ret <L x i16> %h
}
define linkonce_odr <L x i16> @autocast_halves_float32_part(ptr %p, i32 %n) alwaysinline {
  %x = call <L x float> @autocast_load_float32_part(ptr %p, i32 %n)
  %h = call <L x i16> @autocast_narrow_bfloat16(<L x float> %x)
  ret <L x i16> %h
}
"""

_ALONG_BFLOAT16 = """
define linkonce_odr <L x i32> @autocast_pair_FROM(<L x i16> %lo, <L x i16> %hi) alwaysinline {
  %l = zext <L x i16> %lo to <L x i32>
  %h = zext <L x i16> %hi to <L x i32>
  %s = shl <L x i32> %h, splat (i32 16)
  %w = or <L x i32> %l, %s
  ret <L x i32> %w
}
define linkonce_odr void @autocast_along_FROM_bfloat16(ptr %src, i64 %stride, ptr %dst) alwaysinline {
  %next = getelementptr ELEMENT, ptr %src, i64 %stride
  %lo = call <L x i16> @autocast_halves_FROM(ptr %src)
  %hi = call <L x i16> @autocast_halves_FROM(ptr %next)
  %w = call <L x i32> @autocast_pair_FROM(<L x i16> %lo, <L x i16> %hi)
  store <L x i32> %w, ptr %dst, align 4
  ret void
}
define linkonce_odr void @autocast_along_FROM_bfloat16_part(ptr %src, i64 %stride, ptr %dst, i32 %columns, i32 %rows)
  alwaysinline {
  %next = getelementptr ELEMENT, ptr %src, i64 %stride
  %one = icmp sgt i32 %rows, 0
  %two = icmp sgt i32 %rows, 1
  %columns1 = select i1 %one, i32 %columns, i32 0
  %columns2 = select i1 %two, i32 %columns, i32 0
  %lo = call <L x i16> @autocast_halves_FROM_part(ptr %src, i32 %columns1)
  %hi = call <L x i16> @autocast_halves_FROM_part(ptr %next, i32 %columns2)
  %w = call <L x i32> @autocast_pair_FROM(<L x i16> %lo, <L x i16> %hi)
  store <L x i32> %w, ptr %dst, align 4
  ret void
}
"""


def _across(lanes: int, storage: str, compute: str, part: bool) -> str:
    """`lanes` rows along k become `lanes` rows of words."""
    vector, element = f"<{lanes} x i32>", _ELEMENTS[storage]
    edge = ", i32 %rows, i32 %n" if part else ""
    suffix = "_part" if part else ""
    lines = [
        f"define linkonce_odr void @autocast_across_{storage}_{compute}{suffix}"
        f"(ptr %src, i64 %stride, ptr %dst, i64 %width{edge}) alwaysinline {{"
    ]
    if part:
        lines += ["%rows64 = sext i32 %rows to i64", "%last = sub i64 %rows64, 1"]
    for i in range(lanes):
        if part:  # rows beyond the edge repeat the last one: nothing reads what is made of them
            lines += [f"%in{i} = icmp slt i64 {i}, %last", f"%row{i} = select i1 %in{i}, i64 {i}, i64 %last"]
        lines += [
            f"%skip{i} = mul i64 %stride, " + (f"%row{i}" if part else str(i)),
            f"%from{i} = getelementptr {element}, ptr %src, i64 %skip{i}",
        ]
        count = ", i32 %n" if part else ""
        lines.append(f"%word{i} = call {vector} @autocast_words_{storage}_{compute}{suffix}(ptr %from{i}{count})")
    columns, exchanges = transposed([f"%word{i}" for i in range(lanes)], vector)
    lines += exchanges
    for i in range(lanes):
        lines += [
            f"%to_skip{i} = mul i64 %width, {i}",
            f"%to{i} = getelementptr i32, ptr %dst, i64 %to_skip{i}",
            f"store {vector} {columns[i]}, ptr %to{i}, align 4",
        ]
    return "\n  ".join([*lines, "ret void"]) + "\n}\n"


@cache
def packing(isa: InstructionSet, storage: str, compute: str) -> str:
    """LLVM IR of `across` and `along`, whole and in part, for operands stored as `storage`, multiplied as `compute`."""
    if compute == "float32":
        template = _WORDS_FLOAT32 + _ALONG_FLOAT32
    else:
        words = {"bfloat16": _WORDS_BFLOAT16_BFLOAT16, "float32": _WORDS_FLOAT32_BFLOAT16}[storage]
        halves = {"bfloat16": _HALVES_BFLOAT16, "float32": _HALVES_FLOAT32}[storage]
        template = words + halves + _ALONG_BFLOAT16
    upper = "<" + ", ".join(f"i32 {isa.lanes + i}" for i in range(isa.lanes)) + ">"
    template = template.replace("FROM", storage).replace("UPPER", upper)
    template = template.replace("ELEMENT", _ELEMENTS[storage])
    return expand(template, isa.lanes) + "".join(_across(isa.lanes, storage, compute, part) for part in (False, True))
