"""Kernels for AVX-512, its products of bfloat16 and the matrix unit, run by a processor that has none of these.

With the setting AUTOCAST_TARGET=sapphirerapids the tests, and `python -m tests.fuzz`, are as on that processor, on any
x86: kernels are matched and made for it, and LLVM generates this machine's code of them, which splits long vectors.
The intrinsics, which only that processor's instructions compute, are written out here in LLVM IR.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import tvm
import tvm_ffi
from tvm import tirx

from autocast.kernels.targets.cpu import instruction_sets
from autocast.runtime import processors

#: TVM's function that makes machine code of a module, and what a target says of its processor.
_CODE_GENERATOR, _PROCESSOR = "target.build.llvm", ("mcpu", "mattr")

#: What they are where nothing is emulated.
_GENERATE, _missing = tvm_ffi.get_global_func(_CODE_GENERATOR), processors.missing

_F, _I, _H, _MASK = "<16 x float>", "<16 x i32>", "<16 x bfloat>", "<16 x i1>"
_D, _L = "<16 x double>", "<16 x i64>"
_TILES = "[8 x [16 x <16 x i32>]]"

#: The intrinsics of every processor that are called here: a module declares each once.
_DECLARED = {
    "@llvm.fma.v16f32(": f"declare {_F} @llvm.fma.v16f32({_F}, {_F}, {_F})\n",
    "@llvm.floor.v16f32(": f"declare {_F} @llvm.floor.v16f32({_F})\n",
    "@llvm.fabs.v16f32(": f"declare {_F} @llvm.fabs.v16f32({_F})\n",
    "@llvm.fptosi.sat.v16i32.v16f32(": f"declare {_I} @llvm.fptosi.sat.v16i32.v16f32({_F})\n",
}

_VECTORS = f"""
define linkonce_odr {_F} @emulated_pairs({_F} %c, {_I} %x, {_I} %y) alwaysinline {{
  %x1 = and {_I} %x, splat (i32 -65536)
  %y1 = and {_I} %y, splat (i32 -65536)
  %x0 = shl {_I} %x, splat (i32 16)
  %y0 = shl {_I} %y, splat (i32 16)
  %a1 = bitcast {_I} %x1 to {_F}
  %b1 = bitcast {_I} %y1 to {_F}
  %a0 = bitcast {_I} %x0 to {_F}
  %b0 = bitcast {_I} %y0 to {_F}
  %odd = call {_F} @llvm.fma.v16f32({_F} %a1, {_F} %b1, {_F} %c)
  %all = call {_F} @llvm.fma.v16f32({_F} %a0, {_F} %b0, {_F} %odd)
  ret {_F} %all
}}
define linkonce_odr {_F} @emulated_dpbf16ps({_F} %c, <32 x bfloat> %a, <32 x bfloat> %b) alwaysinline {{
  %x = bitcast <32 x bfloat> %a to {_I}
  %y = bitcast <32 x bfloat> %b to {_I}
  %r = call {_F} @emulated_pairs({_F} %c, {_I} %x, {_I} %y)
  ret {_F} %r
}}
define linkonce_odr {_MASK} @emulated_fpclass({_F} %x, i32 %classes) alwaysinline {{
  %b = bitcast {_F} %x to {_I}
  %size = and {_I} %b, splat (i32 2147483647)
  %small = icmp ult {_I} %size, splat (i32 8388608)
  %some = icmp ne {_I} %size, zeroinitializer
  %subnormal = and {_MASK} %small, %some
  ret {_MASK} %subnormal
}}
define linkonce_odr {_H} @emulated_cvtneps2bf16({_F} %x) alwaysinline {{
  %b = bitcast {_F} %x to {_I}
  %t = lshr {_I} %b, splat (i32 16)
  %odd = and {_I} %t, splat (i32 1)
  %half = add {_I} %odd, splat (i32 32767)
  %up = add {_I} %b, %half
  %r = lshr {_I} %up, splat (i32 16)
  %quiet = or {_I} %t, splat (i32 64)
  %nan = fcmp uno {_F} %x, %x
  %kept = select {_MASK} %nan, {_I} %quiet, {_I} %r
  %tiny = call {_MASK} @emulated_fpclass({_F} %x, i32 32)
  %sign = and {_I} %t, splat (i32 32768)
  %w = select {_MASK} %tiny, {_I} %sign, {_I} %kept
  %h = trunc {_I} %w to <16 x i16>
  %y = bitcast <16 x i16> %h to {_H}
  ret {_H} %y
}}
define linkonce_odr <32 x bfloat> @emulated_cvtne2ps2bf16({_F} %high, {_F} %low) alwaysinline {{
  %h = call {_H} @emulated_cvtneps2bf16({_F} %high)
  %l = call {_H} @emulated_cvtneps2bf16({_F} %low)
  %y = shufflevector {_H} %l, {_H} %h, <32 x i32> <{", ".join(f"i32 {i}" for i in range(32))}>
  ret <32 x bfloat> %y
}}
define linkonce_odr {_F} @emulated_reduce({_F} %x, i32 %how, {_F} %other, i16 %mask, i32 %rounding) alwaysinline {{
  %whole = call {_F} @llvm.floor.v16f32({_F} %x)
  %rest = fsub {_F} %x, %whole
  %size = call {_F} @llvm.fabs.v16f32({_F} %x)
  %infinite = fcmp oeq {_F} %size, splat (float 0x7FF0000000000000)
  %r = select {_MASK} %infinite, {_F} zeroinitializer, {_F} %rest
  ret {_F} %r
}}
define linkonce_odr {_F} @emulated_scalef({_F} %a, {_F} %b, {_F} %other, i16 %mask, i32 %rounding) alwaysinline {{
  %whole = call {_F} @llvm.floor.v16f32({_F} %b)
  %low = fcmp olt {_F} %whole, splat (float -600.0)
  %n0 = select {_MASK} %low, {_F} splat (float -600.0), {_F} %whole
  %high = fcmp ogt {_F} %n0, splat (float 600.0)
  %n1 = select {_MASK} %high, {_F} splat (float 600.0), {_F} %n0
  %n = call {_I} @llvm.fptosi.sat.v16i32.v16f32({_F} %n1)
  %wide = sext {_I} %n to {_L}
  %exponent = add {_L} %wide, splat (i64 1023)
  %bits = shl {_L} %exponent, splat (i64 52)
  %power = bitcast {_L} %bits to {_D}
  %a2 = fpext {_F} %a to {_D}
  %scaled = fmul {_D} %a2, %power
  %y = fptrunc {_D} %scaled to {_F}
  %nan = fcmp uno {_F} %b, %b
  %r = select {_MASK} %nan, {_F} %b, {_F} %y
  ret {_F} %r
}}
define linkonce_odr {_F} @emulated_range({_F} %a, {_F} %b, i32 %how, {_F} %c, i16 %mask, i32 %rounding) alwaysinline {{
  %x = call {_F} @llvm.fabs.v16f32({_F} %a)
  %y = call {_F} @llvm.fabs.v16f32({_F} %b)
  %less = fcmp olt {_F} %x, %y
  %z = select {_MASK} %less, {_F} %x, {_F} %y
  %r = fneg {_F} %z
  ret {_F} %r
}}
define linkonce_odr {_F} @emulated_rcp14({_F} %x, {_F} %other, i16 %mask) alwaysinline {{
  %exact = fdiv {_F} splat (float 1.0), %x
  %b = bitcast {_F} %exact to {_I}
  %few = and {_I} %b, splat (i32 -512)
  %r = bitcast {_I} %few to {_F}
  ret {_F} %r
}}
"""


def _rows(name: str, arguments: str, before: str, each: str) -> str:
    """A function that does `each` for the rows %row of a tile, 0 to 15."""
    return f"""
define linkonce_odr void @emulated_{name}({arguments}) alwaysinline {{
entry:
  {before}
  br label %loop
loop:
  %row = phi i64 [0, %entry], [%following, %loop]
  {each}
  %following = add i64 %row, 1
  %more = icmp ult i64 %following, 16
  br i1 %more, label %loop, label %end
end:
  ret void
}}
"""


def _tile(name: str, number: str, row: str = "%row") -> str:
    return f"%{name} = getelementptr {_TILES}, ptr %tiles, i64 0, i8 {number}, i64 {row}"


_OUTSIDE = "%skipped = mul i64 %row, %pitch\n  %outside = getelementptr i8, ptr %p, i64 %skipped"
_MATRIX = (
    _rows("tilezero", "ptr %tiles, i8 %t", "", f"{_tile('at', '%t')}\n  store {_I} zeroinitializer, ptr %at")
    + _rows(
        "tileloadd64",
        "ptr %tiles, i8 %t, ptr %p, i64 %pitch",
        "",
        f"{_tile('at', '%t')}\n  {_OUTSIDE}\n  %x = load {_I}, ptr %outside, align 1\n  store {_I} %x, ptr %at",
    )
    + _rows(
        "tilestored64",
        "ptr %tiles, i8 %t, ptr %p, i64 %pitch",
        "",
        f"{_tile('at', '%t')}\n  {_OUTSIDE}\n  %x = load {_I}, ptr %at\n  store {_I} %x, ptr %outside, align 1",
    )
    + _rows(
        "tile_row",  # the sums of one row of A: c + a[row] * b[row]
        "ptr %tiles, ptr %c, ptr %a, i8 %tb",
        "",
        f"""{_tile("b", "%tb")}
  %word_at = getelementptr i32, ptr %a, i64 %row
  %word = load i32, ptr %word_at
  %one = insertelement {_I} poison, i32 %word, i64 0
  %x = shufflevector {_I} %one, {_I} poison, {_I} zeroinitializer
  %y = load {_I}, ptr %b
  %sum = load {_F}, ptr %c
  %new = call {_F} @emulated_pairs({_F} %sum, {_I} %x, {_I} %y)
  store {_F} %new, ptr %c""",
    )
    + _rows(
        "tdpbf16ps",
        "ptr %tiles, i8 %tc, i8 %ta, i8 %tb",
        "",
        f"""{_tile("c", "%tc")}
  {_tile("a", "%ta")}
  call void @emulated_tile_row(ptr %tiles, ptr %c, ptr %a, i8 %tb)""",
    )
)

#: What is replaced in the LLVM IR of kernels, and by what.
_REPLACED = (
    (r"(?m)^declare [^\n]*@llvm\.x86\.[^\n]*\n", ""),
    (r'call <16 x bfloat> asm "", "=v,0"\(<16 x bfloat> (%\w+)\)', r"bitcast <16 x bfloat> \1 to <16 x bfloat>"),
    (r"@llvm\.x86\.avx512(?:bf16)?\.(?:mask\.)?(\w+?)(?:\.ps)?\.512", r"@emulated_\1"),
    (r"call void @llvm\.x86\.(?:ld|st)tilecfg\([^)]*\)", ""),
    (r"call void @llvm\.x86\.(t\w+)\(", r"call void @emulated_\1(ptr %tiles, "),
    (r"(@autocast_tiles_\dx\d\([^{]*\{\s*entry:)", rf"\1\n  %tiles = alloca {_TILES}, align 64"),
)


def emulated(code: str) -> str:
    """LLVM IR that kernels import, without the instructions of the processor that they are made for."""
    if "@llvm.x86." not in code:
        return code
    for found, instead in _REPLACED:
        code = re.sub(found, instead, code)
    assert "@llvm.x86." not in code, re.findall(r"@llvm\.x86\.[\w.]*", code)
    declared = "".join(line for name, line in _DECLARED.items() if name not in code)
    return f"{declared}{_VECTORS}{_MATRIX if '@emulated_t' in code else ''}{code}"


def _without_instructions(function: tirx.PrimFunc) -> tirx.PrimFunc:
    def of_import(statement: tirx.AttrStmt) -> tirx.Stmt:
        if statement.attr_key != "pragma_import_llvm":
            return statement
        return tirx.AttrStmt(statement.node, statement.attr_key, emulated(str(statement.value.value)), statement.body)

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.AttrStmt, of_import)))


@contextmanager
def running_code_for(target: tvm.target.Target) -> Iterator[None]:
    """In here code for `target` runs: where this processor lacks instructions of it, code is made of what it has."""
    if not is_emulated(target):
        yield
        return
    here = {name: value for name, value in _described(instruction_sets._host(1)).items() if name in _PROCESSOR}

    def generate(mod: tvm.IRModule, target: tvm.target.Target) -> object:
        if not is_emulated(target):
            return _GENERATE(mod, target)
        functions = {var: _without_instructions(function) for var, function in mod.functions.items()}
        others = {name: value for name, value in _described(target).items() if name not in _PROCESSOR}
        return _GENERATE(tvm.IRModule(functions, attrs=mod.attrs), tvm.target.Target({**others, **here}))

    with patch.object(processors, "missing", return_value=()), _generating(generate):
        yield


def as_generated() -> AbstractContextManager[None]:
    """In here code for any processor is what runs on that one: to read, not to run."""
    return _generating(_GENERATE)


@contextmanager
def _generating(generate: Callable[..., object]) -> Iterator[None]:
    before = tvm_ffi.get_global_func(_CODE_GENERATOR)
    tvm_ffi.register_global_func(_CODE_GENERATOR, generate, override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(_CODE_GENERATOR, before, override=True)


def is_emulated(target: tvm.target.Target) -> bool:
    """Whether this processor lacks instructions of `target`."""
    architecture, features, *_ = instruction_sets.machine_of(target)
    return bool(_missing(architecture, features))


def _described(target: tvm.target.Target) -> dict[str, object]:
    return json.loads(str(target))
