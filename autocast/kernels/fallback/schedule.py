"""Schedule the PrimFuncs that no generator of ours wrote: inline, parallelize, vectorize."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from autocast import settings
from autocast.ir import with_functions
from autocast.kernels.backend import rooted
from autocast.kernels.state.reshapes import RESHAPE, is_reshape
from autocast.messages import reason

#: float32 numbers in the vectors that loops are split into; LLVM cuts them to what the target has.
LANES = 16

#: Loop nests of fewer elements than this run on one core: waking the others costs more.
PARALLEL_ELEMENTS = 1 << 14

#: Marks PrimFuncs whose loops are as they should be.
SCHEDULED = "autocast.scheduled"

#: Marks PrimFuncs that a module came with.
EXISTING = "autocast.existing"

#: TIR's operator whose value is where a buffer begins in memory.
_ADDRESS = tvm.ir.Op.get("tirx.buffer_data")

#: TIR's kinds of axes: `IterVar.kDataPar` and `kCommReduce`.
_SPATIAL, _REDUCTION = 0, 2


def schedule(mod: tvm.IRModule) -> tvm.IRModule:
    """Give every unmarked PrimFunc a schedule, and mark it.

    Before::                                      After::

        for i, j in T.grid(1024, 3072):               for i in T.parallel(1024):
            with T.sblock("add"): t[i, j] = ...           for j in range(192):
        for i, j in T.grid(1024, 3072):                       for v in T.vectorized(16):
            with T.sblock("mod"): y[i, j] = f(t[i, j])            with T.sblock("mod"): y[...] = f(...)
    """
    functions = {
        var: _guarded(_schedule(var.name_hint, _without_scopes(function))).with_attr(SCHEDULED, True)
        for var, function in mod.functions.items()
        if isinstance(function, tirx.PrimFunc) and not (function.attrs and SCHEDULED in function.attrs)
    }
    return with_functions(mod, functions)


def _without_scopes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The same without what TVM's builder puts around statements in sequence, of which its code generator warns."""

    def unwrapped(statement: tirx.AttrStmt) -> tirx.Stmt:
        return statement.body if statement.attr_key == "pragma_scope" else statement

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.AttrStmt, unwrapped)))


def mark_existing(mod: tvm.IRModule) -> tvm.IRModule:
    """Mark the PrimFuncs that a module came with: they are neither fused nor scheduled, only compiled.

    Those that an engineer wrote with plain loops get a root block, which TVM's passes expect.
    """
    functions = {
        var: rooted(function).with_attrs({SCHEDULED: True, EXISTING: True, "op_pattern": 8})
        for var, function in mod.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }
    return with_functions(mod, functions)


def _guarded(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The same, but doing nothing where its results have a run-time dimension that is 0.

    Blocks that TVM writes by hand, such as those of running sums, begin with a first element. In others, TVM knows the
    signs of what it divides by, and needs no cases for them: those multiply where quotients are divided again, until
    compiling one kernel takes minutes.
    """
    realize = function.body
    if not isinstance(realize, s_tir.SBlockRealize):
        return function
    block, buffers = realize.block, [param for param in function.params if isinstance(param.ty, tirx.buffer.BufferType)]
    if block.name_hint == "root":
        written = _written(block)
        sizes = _common_factors([buffer.shape for buffer in buffers if any(map(buffer.same_as, written))])
    else:
        sizes = [size for buffer in buffers[-1:] for size in buffer.shape if not isinstance(size, tirx.IntImm)]
    if not sizes or (RESHAPE not in (function.attrs or {}) and is_reshape(function)):
        return function  # `is_reshape` looks for these loops
    body = tirx.IfThenElse(tirx.all(*[size > 0 for size in sizes]), block.body, None)
    fields = (block.iter_vars, block.reads, block.writes, block.name_hint, body, block.init, block.alloc_buffers)
    guarded = s_tir.SBlock(*fields, block.match_buffers, block.annotations)
    return function.with_body(s_tir.SBlockRealize(realize.iter_values, realize.predicate, guarded))


def _written(block: s_tir.SBlock) -> list[tvm.ir.Var]:
    """The buffers that are stored into, or whose address is given away.

    TVM's own analysis of regions composes the indices of all blocks, and divides by 0 where a quotient of a reshape
    of run-time sizes is divided again.
    """
    written: list[tvm.ir.Var] = []

    def called(call: tvm.ir.Call) -> None:
        if call.op.same_as(_ADDRESS):
            written.append(call.args[0])

    stored = (tirx.BufferStore, lambda store: written.append(store.buffer))
    tvm_ffi.structural_walk(block, (stored, (tvm.ir.Call, called)))
    return written


def _common_factors(shapes: list[Sequence[tirx.Expr]]) -> list[tirx.Var]:
    """The sizes by which the numbers of elements of all `shapes` are multiplied."""
    factors = [{factor for size in shape for factor in _factors(size)} for shape in shapes]
    return sorted(set.intersection(*factors), key=lambda var: var.name) if factors else []


def _factors(size: tirx.Expr) -> Iterator[tirx.Var]:
    if isinstance(size, tirx.Var):
        yield size
    elif isinstance(size, tirx.Mul):
        yield from _factors(size.a)
        yield from _factors(size.b)


def _schedule(name: str, function: tirx.PrimFunc) -> tirx.PrimFunc:
    sch = s_tir.Schedule(tvm.IRModule({"main": function}))
    try:
        root = sch.get_sblock("root")
        _inline(sch, root)
        for block in sch.get_child_blocks(root):
            _schedule_nest(sch, block)
    except (s_tir.ScheduleError, RuntimeError, ValueError) as error:
        if settings.debug().level >= 4:
            print(f"kernels: schedule of {name} stopped: {reason(error)}", file=sys.stderr)
    return sch.mod["main"]


def _inline(sch: s_tir.Schedule, root: SBlockRV) -> None:
    """Inline the blocks whose elements are cheap to compute again, or are read once."""
    for block in sch.get_child_blocks(root):
        consumers = sch.get_consumers(block)
        if not consumers or not _is_injective(sch, block):
            continue
        if all(_is_injective(sch, consumer) or _reads_once(sch, consumer, block) for consumer in consumers):
            try:
                sch.compute_inline(block)
            except s_tir.ScheduleError:
                continue


def _reads_once(sch: s_tir.Schedule, consumer: SBlockRV, block: SBlockRV) -> bool:
    return _iterations(sch, block) == _iterations(sch, consumer)


def _schedule_nest(sch: s_tir.Schedule, block: SBlockRV) -> None:
    loops = sch.get_loops(block)
    if not loops:
        return
    kinds = [int(var.iter_type) for var in sch.get(block).iter_vars]
    if len(kinds) != len(loops) or any(kind not in (_SPATIAL, _REDUCTION) for kind in kinds):
        return
    iterations = _iterations(sch, block)
    parallel = iterations is None or iterations >= PARALLEL_ELEMENTS
    if _REDUCTION in kinds:
        _schedule_reduction(sch, block, loops, kinds, parallel)
    else:
        _schedule_injective(sch, block, loops, parallel)


def _schedule_injective(sch: s_tir.Schedule, block: SBlockRV, loops: list[LoopRV], parallel: bool) -> None:
    inner_extent = _extent(sch, loops[-1])
    total = _iterations(sch, block)
    if total is not None and _is_flat(sch.get(block)) and (inner_extent or 0) % LANES and total % LANES == 0:
        loops = [sch.fuse(*loops)]
        inner_extent = total
    outer, inner = loops[:-1], loops[-1]
    if inner_extent is not None and inner_extent % LANES == 0 and _takes_vectors(sch.get(block)):
        strip, lanes = sch.split(inner, [None, LANES])
        sch.vectorize(lanes)
        if not outer:
            outer = [strip]
    if parallel and outer:
        sch.parallel(sch.fuse(*outer) if len(outer) > 1 else outer[0])


def _schedule_reduction(
    sch: s_tir.Schedule, block: SBlockRV, loops: list[LoopRV], kinds: list[int], parallel: bool
) -> None:
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _SPATIAL]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _REDUCTION]
    if not spatial:
        return
    outer, inner = spatial, None
    if _reads_contiguously(sch.get(block), len(kinds) - 1 - kinds[::-1].index(_SPATIAL)):
        outer, inner = spatial[:-1], spatial[-1]
        extent = _extent(sch, inner)
        vectorized = extent is not None and extent % LANES == 0 and _takes_vectors(sch.get(block))
        if vectorized:
            strip, inner = sch.split(inner, [None, LANES])
            outer = [*outer, strip]
    sch.reorder(*outer, *reduced, *([] if inner is None else [inner]))
    if parallel and outer:
        sch.parallel(sch.fuse(*outer) if len(outer) > 1 else outer[0])
    if inner is not None and vectorized:
        sch.vectorize(inner)
    initial = sch.decompose_reduction(block, reduced[0])
    if inner is not None and vectorized:
        sch.vectorize(sch.get_loops(initial)[-1])


def _extent(sch: s_tir.Schedule, loop: LoopRV) -> int | None:
    extent = sch.get(loop).extent
    return int(extent) if isinstance(extent, tirx.IntImm) else None


def _iterations(sch: s_tir.Schedule, block: SBlockRV) -> int | None:
    """How often a block runs; None where that is known at run time."""
    extents = [_extent(sch, loop) for loop in sch.get_loops(block)]
    known = [extent for extent in extents if extent is not None]
    return math.prod(known) if len(known) == len(extents) else None


def _is_injective(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    return all(int(var.iter_type) == _SPATIAL for var in sch.get(block).iter_vars)


def _is_flat(block: s_tir.SBlock) -> bool:
    """Whether each element reads the elements at its own place, and perhaps scalars."""
    (write,) = block.writes

    def place(region: tvm.ir.TensorRegion) -> list:
        return [access.min for access in region.region]

    return all(
        len(read.region) == 0
        or (
            (len(read.region) == len(write.region) and _same(place(read), place(write)))
            and _same(read.source.shape, write.source.shape)
        )
        for read in block.reads
    )


#: Functions of the C library, which has none of vectors.
_OF_NUMBERS = {f"tirx.{name}" for name in ("acosh", "asinh", "atan2", "atanh", "cosh", "hypot", "nextafter", "sinh")}


def _takes_vectors(block: s_tir.SBlock) -> bool:
    """Whether TVM can generate code for vectors of the block: it cannot choose between vectors of bfloat16, and calls
    some functions number by number."""
    of_numbers: list[tvm.ir.Call] = []

    def called(call: tvm.ir.Call) -> None:
        if getattr(call.op, "name", "") in _OF_NUMBERS:
            of_numbers.append(call)

    tvm_ffi.structural_walk(block.body, ((tvm.ir.Call, called),))
    return not of_numbers and all(str(write.source.dtype) != "bfloat16" for write in block.writes)


def _same(left: list, right: list) -> bool:
    return all(tvm_ffi.structural_equal(a, b) for a, b in zip(left, right, strict=True))


def _reads_contiguously(block: s_tir.SBlock, axis: int) -> bool:
    """Whether neighbours along iteration axis `axis` are neighbours in memory, in at least one operand."""
    var = block.iter_vars[axis].var

    def moves_by_one(read: tvm.ir.TensorRegion) -> bool:
        if not read.region:
            return False
        coefficients = sym.detect_linear_equation(read.region[-1].min, [var])
        return len(coefficients) > 0 and isinstance(coefficients[0], tirx.IntImm) and int(coefficients[0]) == 1

    return any(moves_by_one(read) for read in block.reads)
