"""LLVM IR that widens vectors of each stored dtype to float32, and narrows them back; templates as in `llvm_ir`."""

from __future__ import annotations

from autocast.kernels.targets.cpu.instruction_sets import InstructionSet

#: The dtypes beside float32 that vectors are loaded from and stored to, and their bits.
BITS = {"bfloat16": 16, "float16": 16, "bool": 8, "int8": 8, "uint8": 8, "int32": 32, "int64": 64}

_BFLOAT16_WIDEN = """
define linkonce_odr <L x float> @autocast_widen_bfloat16(<L x i16> %x) alwaysinline {
  %z = zext <L x i16> %x to <L x i32>
  %s = shl <L x i32> %z, splat (i32 16)
  %f = bitcast <L x i32> %s to <L x float>
  ret <L x float> %f
}
"""

# The dtype is hidden from LLVM: LLVM 22 stores a vector of `bfloat` past the caches like any other, into them.
_BFLOAT16_NARROW_NATIVE = """
declare <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)
define linkonce_odr <16 x i16> @autocast_narrow_bfloat16(<16 x float> %x) alwaysinline {
  %h = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %x)
  %hidden = call <16 x bfloat> asm "", "=v,0"(<16 x bfloat> %h)
  %y = bitcast <16 x bfloat> %hidden to <16 x i16>
  ret <16 x i16> %y
}
"""

# What that instruction takes for 0, subnormal numbers, is rounded by integers, apart from the vectors that have none.
_BFLOAT16_NARROW_EXACTLY_NATIVE = """
declare <16 x i1> @llvm.x86.avx512.fpclass.ps.512(<16 x float>, i32)
define linkonce_odr <16 x i16> @autocast_narrow_bfloat16_exactly(<16 x float> %x) alwaysinline {
entry:
  %y = call <16 x i16> @autocast_narrow_bfloat16(<16 x float> %x)
  %subnormal = call <16 x i1> @llvm.x86.avx512.fpclass.ps.512(<16 x float> %x, i32 32)
  %mask = bitcast <16 x i1> %subnormal to i16
  %none = icmp eq i16 %mask, 0
  br i1 %none, label %exit, label %round, !prof !{!"branch_weights", i32 1000000, i32 1}
round:
  %b = bitcast <16 x float> %x to <16 x i32>
  %t = lshr <16 x i32> %b, splat (i32 16)
  %odd = and <16 x i32> %t, splat (i32 1)
  %half = add <16 x i32> %odd, splat (i32 32767)
  %up = add <16 x i32> %b, %half
  %r = lshr <16 x i32> %up, splat (i32 16)
  %w = trunc <16 x i32> %r to <16 x i16>
  %chosen = select <16 x i1> %subnormal, <16 x i16> %w, <16 x i16> %y
  br label %exit
exit:
  %z = phi <16 x i16> [ %y, %entry ], [ %chosen, %round ]
  ret <16 x i16> %z
}
"""

# Round to nearest even by integers; a NaN keeps its sign and becomes quiet.
_BFLOAT16_NARROW_PORTABLE = """
define linkonce_odr <L x i16> @autocast_narrow_bfloat16(<L x float> %x) alwaysinline {
  %b = bitcast <L x float> %x to <L x i32>
  %t = lshr <L x i32> %b, splat (i32 16)
  %odd = and <L x i32> %t, splat (i32 1)
  %half = add <L x i32> %odd, splat (i32 32767)
  %up = add <L x i32> %b, %half
  %r = lshr <L x i32> %up, splat (i32 16)
  %q = or <L x i32> %t, splat (i32 64)
  %nan = fcmp uno <L x float> %x, zeroinitializer
  %w = select <L x i1> %nan, <L x i32> %q, <L x i32> %r
  %y = trunc <L x i32> %w to <L x i16>
  ret <L x i16> %y
}
"""

_FLOAT16_NATIVE = """
define linkonce_odr <L x float> @autocast_widen_float16(<L x i16> %x) alwaysinline {
  %h = bitcast <L x i16> %x to <L x half>
  %f = fpext <L x half> %h to <L x float>
  ret <L x float> %f
}
define linkonce_odr <L x i16> @autocast_narrow_float16(<L x float> %x) alwaysinline {
  %h = fptrunc <L x float> %x to <L x half>
  %y = bitcast <L x half> %h to <L x i16>
  ret <L x i16> %y
}
"""

# Fabian Giesen's conversions: the exponent is rebased by a multiplication, subnormals are rounded by an addition.
_FLOAT16_PORTABLE = """
define linkonce_odr <L x float> @autocast_widen_float16(<L x i16> %x) alwaysinline {
  %w = zext <L x i16> %x to <L x i32>
  %sign16 = and <L x i32> %w, splat (i32 32768)
  %sign = shl <L x i32> %sign16, splat (i32 16)
  %size16 = and <L x i32> %w, splat (i32 32767)
  %size = shl <L x i32> %size16, splat (i32 13)
  %small = bitcast <L x i32> %size to <L x float>
  %rebased = fmul <L x float> %small, splat (float 0x46F0000000000000)
  %bits = bitcast <L x float> %rebased to <L x i32>
  %special = icmp uge <L x i32> %size16, splat (i32 31744)
  %forced = or <L x i32> %bits, splat (i32 2139095040)
  %chosen = select <L x i1> %special, <L x i32> %forced, <L x i32> %bits
  %signed = or <L x i32> %chosen, %sign
  %f = bitcast <L x i32> %signed to <L x float>
  ret <L x float> %f
}
define linkonce_odr <L x i16> @autocast_narrow_float16(<L x float> %x) alwaysinline {
  %b = bitcast <L x float> %x to <L x i32>
  %sign = and <L x i32> %b, splat (i32 -2147483648)
  %size = xor <L x i32> %b, %sign
  %magnitude = bitcast <L x i32> %size to <L x float>
  %shifted = fadd <L x float> %magnitude, splat (float 0.5)
  %subnormal.bits = bitcast <L x float> %shifted to <L x i32>
  %subnormal = sub <L x i32> %subnormal.bits, splat (i32 1056964608)
  %t = lshr <L x i32> %size, splat (i32 13)
  %odd = and <L x i32> %t, splat (i32 1)
  %rebased = add <L x i32> %size, splat (i32 -939520001)
  %up = add <L x i32> %rebased, %odd
  %normal = lshr <L x i32> %up, splat (i32 13)
  %tiny = icmp ult <L x i32> %size, splat (i32 947912704)
  %finite = select <L x i1> %tiny, <L x i32> %subnormal, <L x i32> %normal
  %nan = icmp ugt <L x i32> %size, splat (i32 2139095040)
  %special = select <L x i1> %nan, <L x i32> splat (i32 32256), <L x i32> splat (i32 31744)
  %large = icmp uge <L x i32> %size, splat (i32 1199570944)
  %chosen = select <L x i1> %large, <L x i32> %special, <L x i32> %finite
  %sign16 = lshr <L x i32> %sign, splat (i32 16)
  %w = or <L x i32> %chosen, %sign16
  %y = trunc <L x i32> %w to <L x i16>
  ret <L x i16> %y
}
"""

# Truth values are the bytes 0 and 1; as float32 they are 0.0 and 1.0.
_BOOL = """
define linkonce_odr <L x float> @autocast_widen_bool(<L x i8> %x) alwaysinline {
  %m = icmp ne <L x i8> %x, zeroinitializer
  %f = select <L x i1> %m, <L x float> splat (float 1.0), <L x float> zeroinitializer
  ret <L x float> %f
}
define linkonce_odr <L x i8> @autocast_narrow_bool(<L x float> %x) alwaysinline {
  %m = fcmp une <L x float> %x, zeroinitializer
  %y = zext <L x i1> %m to <L x i8>
  ret <L x i8> %y
}
"""

_INTEGER = """
define linkonce_odr <L x float> @autocast_widen_DTYPE(<L x iBITS> %x) alwaysinline {
  %f = SIGNitofp <L x iBITS> %x to <L x float>
  ret <L x float> %f
}
define linkonce_odr <L x iBITS> @autocast_narrow_DTYPE(<L x float> %x) alwaysinline {
NARROW
  ret <L x iBITS> %y
}
"""

# Of a number that a byte does not hold, the low bits of its int32: which other bits come of it would be a processor's.
_TO_WORD = "  %y = fptosi <L x float> %x to <L x iBITS>"
_TO_BYTE = """  %w = fptosi <L x float> %x to <L x i32>
  %y = trunc <L x i32> %w to <L x i8>"""

# What is left of a number after it was stored.
_ROUND = """
define linkonce_odr <L x float> @autocast_round_DTYPE(<L x float> %x) alwaysinline {
  %h = call <L x i16> @autocast_narrow_DTYPE(<L x float> %x)
  %y = call <L x float> @autocast_widen_DTYPE(<L x i16> %h)
  ret <L x float> %y
}
"""


def conversions(isa: InstructionSet) -> str:
    """Templates of `autocast_widen_DTYPE`, `autocast_narrow_DTYPE`, and `autocast_round_DTYPE` of 16-bit floats."""
    parts = [
        _BFLOAT16_WIDEN,
        _BFLOAT16_NARROW_NATIVE if isa.bf16_dot else _BFLOAT16_NARROW_PORTABLE,
        _BFLOAT16_NARROW_EXACTLY_NATIVE if isa.bf16_dot else _exactly(_BFLOAT16_NARROW_PORTABLE),
        _FLOAT16_NATIVE if isa.float16_convert else _FLOAT16_PORTABLE,
        _BOOL,
        *[_integer(dtype) for dtype in BITS if "int" in dtype],
        *[_ROUND.replace("DTYPE", dtype) for dtype in ("bfloat16", "float16")],
    ]
    return "".join(parts)


def _exactly(narrow: str) -> str:
    return narrow.replace("narrow_bfloat16", "narrow_bfloat16_exactly")


def _integer(dtype: str) -> str:
    text = _INTEGER.replace("SIGN", "u" if dtype.startswith("u") else "s")
    text = text.replace("NARROW", _TO_BYTE if BITS[dtype] == 8 else _TO_WORD)
    return text.replace("DTYPE", dtype).replace("BITS", str(BITS[dtype]))
