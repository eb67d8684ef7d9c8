"""From loops to what LLVM's code generator takes: TVM's passes over PrimFuncs, as few as these need."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import s_tir, tirx

#: For functions that are loops and vectors already, as generators of kernels write them. TVM's own pipeline has 40
#: passes for blocks, thread bindings and GPUs, and simplifies four times: with sizes that vary, as long as LLVM takes.
_LOOPS = (
    s_tir.transform.LowerOpaqueBlock(),
    tirx.transform.FlattenBuffer(),
    tirx.transform.BF16ComputeLegalize(),
    tirx.transform.NarrowDataType(32),
    tirx.transform.VectorizeLoop(),
    tirx.transform.StorageRewrite(),
    tirx.transform.UnrollLoop(),
    tirx.transform.StmtSimplify(),
    s_tir.transform.RewriteUnsafeSelect(),
    tirx.transform.FP8ComputeLegalize(),
    tirx.transform.VerifyMemory(),
    tirx.transform.AnnotateEntryFunc(),
    tirx.transform.SplitHostDevice(),
    tirx.transform.MakePackedAPI(),
    tirx.transform.FP8StorageLegalize(),
    tirx.transform.BF16StorageLegalize(),
)


def lowered(unit: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """A unit whose functions are for this target, under the caller's `PassContext`."""
    unit = tirx.transform.BindTarget(target.with_host(target))(unit)
    pipeline, finalize, _ = tirx.get_default_tir_pipeline(target)
    if not any(map(_has_blocks, unit.functions.values())):
        pipeline = tvm.transform.Sequential(_LOOPS)
    unit = finalize()(pipeline(unit))
    if tvm.transform.PassContext.current().config.get("tirx.disable_assert", False):
        unit = tirx.transform.SkipAssert()(unit)
    return unit


def _has_blocks(function: tirx.PrimFunc) -> bool:
    """Whether a function has blocks that say something, more than the one that TVMScript puts around a body."""
    found: list[bool] = []

    def visit(block: s_tir.SBlock) -> None:
        found.append(bool(block.iter_vars or block.alloc_buffers or block.match_buffers or block.annotations))

    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, visit))
    return any(found)
