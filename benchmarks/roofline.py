"""What this machine can do at most, measured: multiply-adds in registers alone, and bytes copied."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from autocast.kernels.targets.cpu.instruction_sets import InstructionSet, detect_target, instruction_set
from autocast.kernels.targets.cpu.vector.llvm_tiles import TILE, tiles_ir
from autocast.runtime import threads
from benchmarks.timing import alternate

#: Chains of multiply-adds: more than one instruction's latency times the instructions that begin in a cycle.
_CHAINS = 16

#: Products of tiles that do not wait for each other, and LLVM IR that adds them up.
_SUMS = 4
_TILES = """
define float @autocast_peak(i32 %steps) noinline {
entry:
  %before = alloca [64 x i8]
  call void @autocast_tiles_begin(ptr %before)
  br label %loop
loop:
  %i = phi i32 [0, %entry], [%next, %loop]
  PRODUCTS
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, %steps
  br i1 %more, label %loop, label %exit
exit:
  call void @autocast_tiles_end(ptr %before)
  ret float 0.0
}
""".replace(
    "PRODUCTS",
    "\n  ".join(f"call void @llvm.x86.tdpbf16ps(i8 {i}, i8 {4 + i // 2}, i8 {6 + i % 2})" for i in range(_SUMS)),
)

#: Multiply-adds of a chain: milliseconds, beside which waking the cores is nothing.
_STEPS = 1_000_000


@dataclass(frozen=True)
class Roofline:
    """Measured limits of the machine, all cores.

    Attributes
    ----------
    gflops : dict of str to float
        Multiplications and additions, 1e9 a second, by the dtype of the operands ("float32", "bfloat16").
    bandwidth : float
        Bytes read plus bytes written by a large copy, 1e9 a second.
    """

    gflops: dict[str, float]
    bandwidth: float

    def milliseconds(self, dtype: str, flops: float, moved: float) -> float:
        """The least time for `flops` on operands of `dtype` while `moved` bytes pass through memory."""
        return max(flops / self.gflops[dtype], moved / self.bandwidth) / 1e6


def measure() -> Roofline:
    """Measure the limits of this machine (about two seconds)."""
    target = detect_target()
    unit = instruction_set(target)
    workers = threads.configure()
    gflops = {"float32": _multiply_adds(unit, "float32", workers, target)}
    gflops["bfloat16"] = gflops["float32"]
    if unit.tiles:
        code = tiles_ir() + _TILES
        gflops["bfloat16"] = _peak(code, _SUMS * 2 * TILE * TILE * 2 * TILE, workers, target)
    elif unit.bf16_dot:
        gflops["bfloat16"] = _multiply_adds(unit, "bfloat16", workers, target)
    return Roofline(gflops, _copied_bytes())


def _multiply_adds(unit: InstructionSet, dtype: str, workers: int, target: tvm.target.Target) -> float:
    """The peak of independent chains of multiply-adds that never leave registers."""
    each = 2 * unit.lanes * (2 if dtype == "bfloat16" else 1)
    return _peak(_chains(unit.lanes, dtype), _CHAINS * each, workers, target)


def _peak(code: str, each: int, workers: int, target: tvm.target.Target) -> float:
    """1e9 floating-point operations a second of `float autocast_peak(int steps)`, `each` a step, on all cores."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        result = T.arg("result", T.buffer((workers,), "float32"))
        with T.attr(tirx.const(0, "int32"), "pragma_import_llvm", code), T.parallel(0, workers) as worker:
            T.buffer_store(result, tirx.call_extern("float32", "autocast_peak", tirx.const(_STEPS, "int32")), [worker])
    machine = tvm.compile(tvm.IRModule({"main": builder.get()}), target=target)
    result = tvm.runtime.tensor(np.zeros(workers, "float32"))
    best = alternate({"peak": lambda: machine["main"](result)}, rounds=2, calls=10)["peak"].best
    return workers * _STEPS * each / best / 1e6


def _chains(lanes: int, dtype: str) -> str:
    """LLVM IR of `float autocast_peak(int steps)`. The chains start differently, so that LLVM cannot merge them."""
    vector = f"<{lanes} x float>"
    if dtype == "bfloat16":
        # The intrinsic's operands are pairs of bfloat16.
        operand, callee = "<32 x bfloat>", "@llvm.x86.avx512bf16.dpbf16ps.512"
        declaration = f"declare {vector} {callee}({vector}, {operand}, {operand})"
        call = f"call {vector} {callee}({vector} %a{{0}}, {operand} %x, {operand} %x)"
    else:
        operand, callee = vector, f"@llvm.fma.v{lanes}f32"
        declaration = f"declare {vector} {callee}({vector}, {vector}, {vector})"
        call = f"call {vector} {callee}({vector} %x, {vector} %x, {vector} %a{{0}})"
    scalar = operand.split(" x ")[1][:-1]
    # The factor is computed from the argument, so that nothing is known of it when LLVM compiles this.
    lines = [
        declaration,
        f"declare float @llvm.vector.reduce.fadd.v{lanes}f32(float, {vector})",
        "define float @autocast_peak(i32 %steps) noinline {",
        "entry:",
        f"%s = sitofp i32 %steps to {scalar}",
        f"%x0 = insertelement {operand} poison, {scalar} %s, i32 0",
        f"%x = shufflevector {operand} %x0, {operand} poison, {operand.replace(scalar, 'i32')} zeroinitializer",
        "br label %loop",
        "loop:",
        "%i = phi i32 [0, %entry], [%next, %loop]",
    ]
    for chain in range(_CHAINS):
        start = ", ".join(f"float {chain}.0" for _ in range(lanes))
        lines.append(f"%a{chain} = phi {vector} [<{start}>, %entry], [%b{chain}, %loop]")
    lines += [f"%b{chain} = {call.format(chain)}" for chain in range(_CHAINS)]
    lines += ["%next = add i32 %i, 1", "%more = icmp slt i32 %next, %steps", "br i1 %more, label %loop, label %exit"]
    lines += ["exit:", f"%sum1 = fadd {vector} %b0, %b1"]
    lines += [f"%sum{chain} = fadd {vector} %sum{chain - 1}, %b{chain}" for chain in range(2, _CHAINS)]
    total = f"call float @llvm.vector.reduce.fadd.v{lanes}f32(float 0.0, {vector} %sum{_CHAINS - 1})"
    return "\n".join([*lines, f"%total = {total}", "ret float %total", "}"]) + "\n"


def _copied_bytes() -> float:
    """1e9 bytes a second, read and written, by a copy of 256 MiB on all cores."""
    source, copy = torch.ones(2**26), torch.empty(2**26)
    best = alternate({"copy": lambda: copy.copy_(source)}, rounds=2, calls=5)["copy"].best
    return 2 * source.nbytes / best / 1e6
