"""Generate kernels that look up rows of a table by their numbers."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import ceil_div, i64, minimum, quotient, remainder
from autocast.kernels.specs.layout import Lookup
from autocast.kernels.targets.cpu.instruction_sets import instruction_set
from autocast.kernels.targets.cpu.layout.copies import COPY_IR, Memory, copy_element, copy_row
from autocast.kernels.targets.cpu.vector import llvm_ir
from autocast.kernels.targets.cpu.vector.evaluator import Sizes
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, importing, kernel_function

#: Fewer elements than this are looked up by one core.
_PARALLEL_ELEMENTS = 1 << 13

#: Numbers that are looked up at once where rows are single elements.
_CHUNK = 4096


def _nearest(number: tirx.Expr, rows: tirx.Expr) -> tirx.Expr:
    return tirx.max(i64(0), tirx.min(number, rows - 1))


#: What becomes of a row number that is out of range, as `relax.take` defines it; where it does not, nothing that would
#: read beyond the table.
_IN_RANGE = {
    "fast": _nearest,
    "clip": _nearest,
    "wrap": lambda number, rows: tirx.floormod(number, tirx.max(rows, i64(1))),
}


def lookup(spec: Lookup, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(table, numbers, out)` that computes `spec` on `target`."""
    unit, sizes = VectorUnit(instruction_set(target)), Sizes()
    with kernel_function(name) as finished:
        tensors = (spec.table, spec.numbers, spec.out)
        arguments = [T.arg(f"x{i}", T.buffer(sizes.shape(shape), dtype)) for i, (shape, dtype) in enumerate(tensors)]
        table, numbers, out = (Memory(buffer) for buffer in arguments)
        code = llvm_ir.conversions_and_accesses(unit.isa) + COPY_IR
        with importing(code):
            shape = sizes.shape(spec.table[0])
            before, rows, after = math.prod(shape[: spec.axis]), shape[spec.axis], math.prod(shape[spec.axis + 1 :])
            count = math.prod(sizes.shape(spec.numbers[0]))
            single = isinstance(after, int) and after == 1
            chunk = _CHUNK if single else 1
            chunks = ceil_div(count, chunk)
            size = before * count * after
            small = isinstance(size, int) and size < _PARALLEL_ELEMENTS

            def place(number: Any, block: Any) -> Any:
                row = _IN_RANGE[spec.mode](numbers.numbers[number].astype("int64"), i64(rows))
                return (block * i64(rows) + row) * i64(after)

            with (T.serial if small else T.parallel)(0, i64(before * chunks)) as task:
                block, first = T.bind(quotient(task, chunks)), T.bind(remainder(task, chunks) * chunk)
                write, several = T.bind((block * i64(count) + first) * i64(after)), i64(minimum(count - first, chunk))

                def copy() -> None:
                    if single:
                        with T.serial(0, several) as step:
                            copy_element(unit, table, place(first + step, block), out, write + step)
                    else:
                        copy_row(unit, table, T.bind(place(first, block)), out, write, after)

                if isinstance(rows, int):
                    copy()
                else:
                    # Were there as many numbers as rows, TVM would divide by their count where it is known to be 0.
                    with T.If(i64(unit.opaque(rows)) > 0):
                        with T.Then():
                            copy()
                        with T.Else(), T.serial(0, several * i64(after)) as element:  # a table without rows
                            T.buffer_store(out.numbers, tirx.const(0, out.dtype), [write + element])
    return finished()
