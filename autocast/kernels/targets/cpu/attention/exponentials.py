"""LLVM IR of what happens between the two products: powers of two, pairs of probabilities, masks."""

from __future__ import annotations

import struct
from functools import cache

import numpy as np

from autocast.kernels.targets.cpu.instruction_sets import InstructionSet
from autocast.kernels.targets.cpu.vector.llvm_ir import expand

#: Degree of the polynomial for 2^x by the dtype of the second product: errors of 4e-6 and 2e-8.
_DEGREE = {"bfloat16": 4, "float32": 6}

# Lanes before the first, or from a count on, are -inf: keys that a query must not see, or that are none.
_MASKS = """
define linkonce_odr <L x float> @autocast_from_lane(<L x float> %x, i32 %first) alwaysinline {
  %one = insertelement <L x i32> poison, i32 %first, i64 0
  %all = shufflevector <L x i32> %one, <L x i32> poison, <L x i32> zeroinitializer
  %seen = icmp sge <L x i32> IOTA, %all
  %y = select <L x i1> %seen, <L x float> %x, <L x float> splat (float 0xFFF0000000000000)
  ret <L x float> %y
}
define linkonce_odr <L x float> @autocast_to_lane(<L x float> %x, i32 %count) alwaysinline {
  %seen = call <L x i1> @autocast_mask(i32 %count)
  %y = select <L x i1> %seen, <L x float> %x, <L x float> splat (float 0xFFF0000000000000)
  ret <L x float> %y
}
declare float @llvm.vector.reduce.fmax.vLf32(<L x float>)
define linkonce_odr float @autocast_largest(<L x float> %x) alwaysinline {
  %y = call nnan float @llvm.vector.reduce.fmax.vLf32(<L x float> %x)
  ret float %y
}
define linkonce_odr <L x float> @autocast_choose(<L x float> %keep, <L x float> %x, <L x float> %y) alwaysinline {
  %kept = fcmp une <L x float> %keep, zeroinitializer
  %z = select <L x i1> %kept, <L x float> %x, <L x float> %y
  ret <L x float> %z
}
"""

# vscalefps takes the power from the whole part and gives 0 for -inf and what is too small: nothing need be bounded.
_POWER_AVX512 = """
declare <16 x float> @llvm.x86.avx512.mask.reduce.ps.512(<16 x float>, i32, <16 x float>, i16, i32)
declare <16 x float> @llvm.x86.avx512.mask.scalef.ps.512(<16 x float>, <16 x float>, <16 x float>, i16, i32)
define linkonce_odr <16 x float> @autocast_power_COMPUTE(<16 x float> %x) alwaysinline {
  %table = call ptr asm sideeffect "", "=r,0"(ptr @autocast_power_COMPUTE_table)
  %r = call <16 x float> @llvm.x86.avx512.mask.reduce.ps.512(<16 x float> %x, i32 1, <16 x float> %x, i16 -1, i32 4)
  POLYNOMIAL
  %y = call <16 x float> @llvm.x86.avx512.mask.scalef.ps.512(
    <16 x float> %p, <16 x float> %x, <16 x float> %x, i16 -1, i32 4)
  ret <16 x float> %y
}
"""

# Adding 1.5 * 2^23 rounds to an integer, kept in the low bits of the sum.
_POWER_PORTABLE = """
define linkonce_odr <L x float> @autocast_power_COMPUTE(<L x float> %x) alwaysinline {
  %table = call ptr asm sideeffect "", "=r,0"(ptr @autocast_power_COMPUTE_table)
  %low = fcmp olt <L x float> %x, splat (float -126.0)
  %b = select <L x i1> %low, <L x float> splat (float -126.0), <L x float> %x
  %s = fadd <L x float> %b, splat (float 12582912.0)
  %whole = fsub <L x float> %s, splat (float 12582912.0)
  %r = fsub <L x float> %b, %whole
  %i = bitcast <L x float> %s to <L x i32>
  %n = sub <L x i32> %i, splat (i32 1262485377)
  %shifted = shl <L x i32> %n, splat (i32 23)
  %scale = bitcast <L x i32> %shifted to <L x float>
  POLYNOMIAL
  %y = fmul <L x float> %p, %scale
  %z = select <L x i1> %low, <L x float> zeroinitializer, <L x float> %y
  ret <L x float> %z
}
"""

_PAIRS = """
define linkonce_odr <L x i32> @autocast_probabilities(<L x float> %even, <L x float> %odd) alwaysinline {
  %h = call <2L x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<L x float> %odd, <L x float> %even)
  %mixed = shufflevector <2L x bfloat> %h, <2L x bfloat> poison, <2L x i32> MIXED
  %w = bitcast <2L x bfloat> %mixed to <L x i32>
  ret <L x i32> %w
}
declare <2L x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<L x float>, <L x float>)
"""


def _coefficients(degree: int, low: float) -> list[float]:
    """2^x on [low, low + 1] by a polynomial of nearly the smallest relative error, highest power first."""
    x = low + (1 - np.cos(np.pi * (np.arange(400) + 0.5) / 400)) / 2
    return np.linalg.lstsq(np.vander(x, degree + 1) / 2.0 ** x[:, None], np.ones(400), rcond=None)[0].tolist()


def _power(isa: InstructionSet, compute: str) -> str:
    """2^x for x <= 0, -inf and NaN: as exact as what is multiplied in `compute`; 0 below the smallest normal number.

    The coefficients are read from memory, at an address that LLVM cannot see: held in registers across the products
    around the softmax they would push sums out of them.
    """
    wide = isa.lanes == 16
    coefficients = _coefficients(_DEGREE[compute], 0.0 if wide else -0.5)
    lines, total = [], ""
    for i, _ in enumerate(coefficients):
        lines += [
            f"%a{i} = getelementptr i8, ptr %table, i64 {4 * i}",
            f"%c{i} = load float, ptr %a{i}, align 4",
            f"%o{i} = insertelement <L x float> poison, float %c{i}, i64 0",
            f"%k{i} = shufflevector <L x float> %o{i}, <L x float> poison, <L x i32> zeroinitializer",
        ]
        if i:
            name = "p" if i == len(coefficients) - 1 else f"p{i}"
            operands = f"<L x float> {total or '%k0'}, <L x float> %r, <L x float> %k{i}"
            lines.append(f"%{name} = call <L x float> @llvm.fmuladd.vLf32({operands})")
            total = f"%{name}"
    bits = [struct.unpack(">Q", struct.pack(">d", np.float32(value)))[0] for value in coefficients]
    table = ", ".join(f"float 0x{value:016X}" for value in bits)
    text = (
        f"@autocast_power_COMPUTE_table = private unnamed_addr constant [{len(bits)} x float] [{table}]\n"
        "declare <L x float> @llvm.fmuladd.vLf32(<L x float>, <L x float>, <L x float>)\n"
    )
    text += (_POWER_AVX512 if wide else _POWER_PORTABLE).replace("POLYNOMIAL", "\n  ".join(lines))
    return text.replace("COMPUTE", compute)


@cache
def softmax_ir(isa: InstructionSet, compute: str) -> str:
    """LLVM IR of `autocast_power_<compute>`, of masks by lanes and by tensors, of the largest number of a vector and,
    for pairs of bfloat16, of `autocast_probabilities`: the words of two rows of probabilities."""
    mixed = ", ".join(f"i32 {i + half}" for i in range(isa.lanes) for half in (0, isa.lanes))
    pairs = _PAIRS.replace("MIXED", f"<{mixed}>") if compute == "bfloat16" else ""
    return expand(_MASKS + _power(isa, compute) + pairs, isa.lanes)
