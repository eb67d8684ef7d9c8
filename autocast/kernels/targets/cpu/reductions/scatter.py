"""Generate kernels that add rows to those rows of a table that numbers name: the gradient of a lookup."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import ceil_div, i32, i64, minimum
from autocast.kernels.specs.reductions import Scatter
from autocast.kernels.targets.cpu.instruction_sets import cores, instruction_set
from autocast.kernels.targets.cpu.vector import llvm_ir
from autocast.kernels.targets.cpu.vector.evaluator import Sizes
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, flat, importing, kernel_function

#: Elements of the table that one task clears or copies.
_CHUNK = 1 << 16

#: Columns that a task has at least: two threads are never to write to one cache line.
_COLUMNS = 64

#: Fewer elements than this are added by one core.
_PARALLEL_ELEMENTS = 1 << 14

_IR = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define linkonce_odr void @autocast_clear(ptr %dst, i32 %count) alwaysinline {
  %wide = zext i32 %count to i64
  %bytes = shl i64 %wide, 2
  call void @llvm.memset.p0.i64(ptr %dst, i8 0, i64 %bytes, i1 false)
  ret void
}
define linkonce_odr void @autocast_copy_apart(ptr %dst, ptr %src, i32 %count) alwaysinline {
entry:
  %a = ptrtoint ptr %dst to i64
  %b = ptrtoint ptr %src to i64
  %same = icmp eq i64 %a, %b
  br i1 %same, label %exit, label %copy
copy:
  %wide = zext i32 %count to i64
  %bytes = shl i64 %wide, 2
  call void @llvm.memcpy.p0.p0.i64(ptr %dst, ptr %src, i64 %bytes, i1 false)
  br label %exit
exit:
  ret void
}
"""


def scatter(spec: Scatter, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(rows, numbers, [base], out)` that computes `spec` on `target`.

    The result may take the place of the base: then only the rows that are named are touched.
    """
    unit, sizes = VectorUnit(instruction_set(target)), Sizes()
    tensors = [spec.rows, spec.numbers, *([(spec.out, "float32")] if spec.based else []), (spec.out, "float32")]
    with kernel_function(name) as finished:
        if spec.based:
            T.func_attr({"autocast.in_place": [[0, 2]]})
        arguments = [T.arg(f"x{i}", T.buffer(sizes.shape(shape), dtype)) for i, (shape, dtype) in enumerate(tensors)]
        rows, numbers, *base, out = (flat(buffer) for buffer in arguments)
        shape = sizes.shape(spec.out)
        before, height, width = math.prod(shape[: spec.axis]), shape[spec.axis], math.prod(shape[spec.axis + 1 :])
        count = math.prod(sizes.shape(spec.numbers[0]))
        with importing(llvm_ir.conversions_and_accesses(unit.isa) + _IR):
            _filled(out, base[0] if base else None, before * height * width)
            strips = min(cores(target), max(1, width // _COLUMNS)) if isinstance(width, int) else 1
            small = isinstance(count, int) and isinstance(width, int) and count * width < _PARALLEL_ELEMENTS
            columns = ceil_div(ceil_div(width, strips), unit.lanes) * unit.lanes if strips > 1 else width
            with (T.serial if small else T.parallel)(0, i64(before * strips)) as task:
                block, first = T.bind(task // strips), T.bind(task % strips * i64(columns))
                here = T.bind(i64(minimum(width - first, columns)))
                with T.serial(0, i64(count)) as number:
                    row = T.bind(spec.row(numbers[number].astype("int64"), i64(height)))
                    write = T.bind((block * i64(height) + row) * i64(width) + first)
                    read = T.bind((block * i64(count) + number) * i64(width) + first)
                    _add_row(unit, rows, read, out, write, here)
    return finished()


def _filled(out: tirx.Buffer, base: tirx.Buffer | None, size: Any) -> None:
    """Emit that `out` becomes the base, or zero."""
    small = isinstance(size, int) and size < _PARALLEL_ELEMENTS
    with (T.serial if small else T.parallel)(0, i64(ceil_div(size, _CHUNK))) as chunk:
        first = T.bind(chunk * _CHUNK)
        places = [T.address_of(out[first])] + ([] if base is None else [T.address_of(base[first])])
        verb = "autocast_clear" if base is None else "autocast_copy_apart"
        T.evaluate(tirx.call_extern("void", verb, *places, i32(i64(minimum(size - first, _CHUNK)))))


def _add_row(unit: VectorUnit, rows: tirx.Buffer, read: Any, out: tirx.Buffer, write: Any, count: Any) -> None:
    """Emit `out[write:] += rows[read:]` for `count` elements."""

    def add(place: Any, left: Any) -> None:
        total = unit.load(out, write + place, left) + unit.load(rows, read + place, left)
        unit.store(out, write + place, total, left)

    with T.serial(0, i64(count // unit.lanes)) as vector:
        add(vector * unit.lanes, None)
    left = T.bind(count % unit.lanes)
    with T.If(left > 0), T.Then():
        add(count - left, left)
