"""Snippets of LLVM IR that TIR cannot spell: masked loads and stores that convert, the bfloat16 dot.

TIR's bfloat16 legalization rewrites the operands of bfloat16 intrinsics to float32, and TIR has no masked memory
access that every target lowers well. The snippets are `alwaysinline` functions over vectors of `lanes` float32 numbers,
imported by the `pragma_import_llvm` attribute; after inlining nothing of them remains but the instructions. They are
`linkonce_odr`, so kernels that import the same text can be linked into one module.

In the templates `<L x` stands for the number of lanes, `<2L x` for twice that, `IOTA` and `IOTA2` for 0, 1, 2, ... and
`WHOLE4` for the alignment, at most a cache line, of whole vectors of elements of 4 bytes.
"""

from __future__ import annotations

from functools import cache

from autocast.kernels.targets.cpu.instruction_sets import InstructionSet
from autocast.kernels.targets.cpu.vector.llvm_conversions import BITS, conversions

_MASKS = """
declare <L x i8> @llvm.masked.load.vLi8.p0(ptr, i32, <L x i1>, <L x i8>)
declare void @llvm.masked.store.vLi8.p0(<L x i8>, ptr, i32, <L x i1>)
declare <L x i32> @llvm.masked.load.vLi32.p0(ptr, i32, <L x i1>, <L x i32>)
declare void @llvm.masked.store.vLi32.p0(<L x i32>, ptr, i32, <L x i1>)
declare <L x i64> @llvm.masked.load.vLi64.p0(ptr, i32, <L x i1>, <L x i64>)
declare void @llvm.masked.store.vLi64.p0(<L x i64>, ptr, i32, <L x i1>)
declare <L x i16> @llvm.masked.load.vLi16.p0(ptr, i32, <L x i1>, <L x i16>)
declare <2L x i16> @llvm.masked.load.v2Li16.p0(ptr, i32, <2L x i1>, <2L x i16>)
declare <L x float> @llvm.masked.load.vLf32.p0(ptr, i32, <L x i1>, <L x float>)
declare <2L x float> @llvm.masked.load.v2Lf32.p0(ptr, i32, <2L x i1>, <2L x float>)
declare void @llvm.masked.store.vLi16.p0(<L x i16>, ptr, i32, <L x i1>)
declare void @llvm.masked.store.vLf32.p0(<L x float>, ptr, i32, <L x i1>)
define linkonce_odr <L x i1> @autocast_mask(i32 %n) alwaysinline {
  %one = insertelement <L x i32> poison, i32 %n, i64 0
  %all = shufflevector <L x i32> %one, <L x i32> poison, <L x i32> zeroinitializer
  %mask = icmp slt <L x i32> IOTA, %all
  ret <L x i1> %mask
}
define linkonce_odr <2L x i1> @autocast_mask2(i32 %n) alwaysinline {
  %one = insertelement <2L x i32> poison, i32 %n, i64 0
  %all = shufflevector <2L x i32> %one, <2L x i32> poison, <2L x i32> zeroinitializer
  %mask = icmp slt <2L x i32> IOTA2, %all
  ret <2L x i1> %mask
}
declare float @llvm.vector.reduce.fadd.vLf32(float, <L x float>)
define linkonce_odr float @autocast_sum(<L x float> %x) alwaysinline {
  %s = call reassoc float @llvm.vector.reduce.fadd.vLf32(float -0.0, <L x float> %x)
  ret float %s
}
define linkonce_odr <L x float> @autocast_once(<L x float> %x) alwaysinline {
  ret <L x float> %x
}
declare <L x float> @llvm.arithmetic.fence.vLf32(<L x float>)
define linkonce_odr <L x float> @autocast_unfused(<L x float> %x) alwaysinline {
  %rounded = call <L x float> @llvm.arithmetic.fence.vLf32(<L x float> %x)
  ret <L x float> %rounded
}
define linkonce_odr <L x float> @autocast_rounded_off(<L x float> %a, <L x float> %b) alwaysinline {
  %sum = fadd <L x float> %a, %b
  %from_b = fsub <L x float> %sum, %a
  %from_a = fsub <L x float> %sum, %from_b
  %lost_a = fsub <L x float> %a, %from_a
  %lost_b = fsub <L x float> %b, %from_b
  %lost = fadd <L x float> %lost_a, %lost_b
  ret <L x float> %lost
}
define linkonce_odr void @autocast_touch(ptr %p) alwaysinline {
  ret void
}
define linkonce_odr i64 @autocast_same(i64 %n) alwaysinline {
  ret i64 %n
}
define linkonce_odr void @autocast_fence(ptr %p) alwaysinline {
  call void asm sideeffect "", "r,~{memory}"(ptr %p)
  ret void
}
define linkonce_odr void @autocast_drain() alwaysinline {
  fence seq_cst
  ret void
}
"""

_BFLOAT16_DOT = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define linkonce_odr <16 x float> @autocast_dot(<16 x float> %c, <16 x i32> %a, <16 x i32> %b) alwaysinline {
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %c, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}
"""

_ACCESS_FLOAT32 = """
define linkonce_odr <L x float> @autocast_load_float32(ptr %p) alwaysinline {
  %x = load <L x float>, ptr %p, align 4
  ret <L x float> %x
}
define linkonce_odr <L x float> @autocast_load_float32_part(ptr %p, i32 %n) alwaysinline {
  %m = call <L x i1> @autocast_mask(i32 %n)
  %x = call <L x float> @llvm.masked.load.vLf32.p0(ptr %p, i32 4, <L x i1> %m, <L x float> zeroinitializer)
  ret <L x float> %x
}
define linkonce_odr void @autocast_store_float32(ptr %p, <L x float> %x) alwaysinline {
  store <L x float> %x, ptr %p, align 4
  ret void
}
define linkonce_odr void @autocast_stream_float32(ptr %p, <L x float> %x) alwaysinline {
  store <L x float> %x, ptr %p, align WHOLE4, !nontemporal !{i32 1}
  ret void
}
define linkonce_odr void @autocast_store_float32_part(ptr %p, <L x float> %x, i32 %n) alwaysinline {
  %m = call <L x i1> @autocast_mask(i32 %n)
  call void @llvm.masked.store.vLf32.p0(<L x float> %x, ptr %p, i32 4, <L x i1> %m)
  ret void
}
"""

_LOAD = """
define linkonce_odr float @autocast_scalar_DTYPE(ptr %p) alwaysinline {
  %h = load iBITS, ptr %p, align BYTES
  %v = insertelement <L x iBITS> zeroinitializer, iBITS %h, i64 0
  %x = call <L x float> @autocast_widen_DTYPE(<L x iBITS> %v)
  %y = extractelement <L x float> %x, i64 0
  ret float %y
}
define linkonce_odr <L x float> @autocast_load_DTYPE(ptr %p) alwaysinline {
  %h = load <L x iBITS>, ptr %p, align BYTES
  %x = call <L x float> @autocast_widen_DTYPE(<L x iBITS> %h)
  ret <L x float> %x
}
define linkonce_odr <L x float> @autocast_load_DTYPE_part(ptr %p, i32 %n) alwaysinline {
  %m = call <L x i1> @autocast_mask(i32 %n)
  %h = call <L x iBITS> @llvm.masked.load.vLiBITS.p0(ptr %p, i32 BYTES, <L x i1> %m, <L x iBITS> zeroinitializer)
  %x = call <L x float> @autocast_widen_DTYPE(<L x iBITS> %h)
  ret <L x float> %x
}
"""

# The number of lanes is hidden from LLVM where it is known: LLVM 22 compiles a truncating store that is masked to one
# known lane into a store of 32 bits, one element too many.
_STORE = """
define linkonce_odr void @autocast_store_DTYPE(ptr %p, <L x float> %x) alwaysinline {
  %h = call <L x iBITS> @autocast_narrow_DTYPE(<L x float> %x)
  store <L x iBITS> %h, ptr %p, align BYTES
  ret void
}
define linkonce_odr void @autocast_stream_DTYPE(ptr %p, <L x float> %x) alwaysinline {
  %h = call <L x iBITS> @autocast_narrow_DTYPE(<L x float> %x)
  store <L x iBITS> %h, ptr %p, align WHOLEBYTES, !nontemporal !{i32 1}
  ret void
}
define linkonce_odr void @autocast_store_DTYPE_part(ptr %p, <L x float> %x, i32 %n) alwaysinline {
  %hidden = call i32 asm "", "=r,0"(i32 %n)
  %m = call <L x i1> @autocast_mask(i32 %hidden)
  %h = call <L x iBITS> @autocast_narrow_DTYPE(<L x float> %x)
  call void @llvm.masked.store.vLiBITS.p0(<L x iBITS> %h, ptr %p, i32 BYTES, <L x i1> %m)
  ret void
}
"""

#: All dtypes that vectors are loaded from and stored to.
LOADED = frozenset({"float32", *BITS})


def _access(template: str, name: str, bits: int) -> str:
    """Loads that widen, or stores that narrow, elements of `bits` bits."""
    return template.replace("DTYPE", name).replace("BITS", str(bits)).replace("BYTES", str(bits // 8))


def expand(template: str, lanes: int) -> str:
    """Replace the stand-ins of a template by what they mean for vectors of `lanes` numbers."""
    for size in (1, 2, 4, 8):
        template = template.replace(f"WHOLE{size}", str(min(lanes * size, 64)))
    for count, mark in ((2 * lanes, "2L"), (lanes, "L")):
        template = template.replace(f"<{mark} x", f"<{count} x").replace(f".v{mark}", f".v{count}")
    for count, mark in ((2 * lanes, "IOTA2"), (lanes, "IOTA")):
        template = template.replace(mark, "<" + ", ".join(f"i32 {i}" for i in range(count)) + ">")
    return template


@cache
def conversions_and_accesses(isa: InstructionSet) -> str:
    """LLVM IR of masks, conversions, whole and partial loads and stores, and the bfloat16 dot where `isa` has one."""
    parts = [
        _MASKS,
        conversions(isa),
        _ACCESS_FLOAT32,
        *[_access(_LOAD + _STORE, dtype, bits) for dtype, bits in BITS.items()],
        _access(_STORE, "bfloat16_exactly", 16),
        _BFLOAT16_DOT if isa.bf16_dot else "",
    ]
    return expand("".join(parts), isa.lanes)
