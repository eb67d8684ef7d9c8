"""Generate kernels that write rows of a tensor by their numbers; in place they touch no others."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.backend import OVERWRITING
from autocast.kernels.extents import ceil_div, i64, minimum
from autocast.kernels.specs.layout import RowWrites
from autocast.kernels.targets.cpu.instruction_sets import instruction_set
from autocast.kernels.targets.cpu.layout.copies import COPY_IR, Memory, copy_row
from autocast.kernels.targets.cpu.vector import llvm_ir
from autocast.kernels.targets.cpu.vector.evaluator import Sizes
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, importing, kernel_function

#: Fewer elements than this are written by one core.
_PARALLEL_ELEMENTS = 1 << 14

#: Elements of what is not overwritten that a task copies.
_CHUNK = 1 << 14


def row_writes(spec: RowWrites, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(x, numbers, rows, out)` that computes `spec` on `target`.

    Where the result takes the place of x, another function copies nothing.
    """
    in_place = _kernel(spec, target, name, copies=False)
    return (
        _kernel(spec, target, name, copies=True)
        .with_attr("autocast.in_place", [[0, 0]])
        .with_attr(OVERWRITING, in_place)
    )


def _kernel(spec: RowWrites, target: tvm.target.Target, name: str, *, copies: bool) -> tirx.PrimFunc:
    unit, sizes = VectorUnit(instruction_set(target)), Sizes()
    with kernel_function(name) as finished:
        tensors = (spec.x, spec.numbers, spec.rows, spec.x)
        arguments = [T.arg(f"x{i}", T.buffer(sizes.shape(shape), dtype)) for i, (shape, dtype) in enumerate(tensors)]
        x, numbers, rows, out = (Memory(buffer) for buffer in arguments)
        shape = sizes.shape(spec.x[0])
        before, height, width = math.prod(shape[: spec.axis]), shape[spec.axis], math.prod(shape[spec.axis + 1 :])
        count = math.prod(sizes.shape(spec.numbers[0]))
        with importing(llvm_ir.conversions_and_accesses(unit.isa) + COPY_IR):
            if copies:
                size = before * height * width
                with _loop(size)(0, i64(ceil_div(size, _CHUNK))) as chunk:
                    first = T.bind(chunk * _CHUNK)
                    copy_row(unit, x, first, out, first, T.bind(i64(minimum(size - first, _CHUNK))))
            # Numbers one after another: of equal ones the last counts.
            with _loop(before * count * width)(0, i64(before)) as block, T.serial(0, i64(count)) as number:
                asked = T.bind(numbers.numbers[number].astype("int64"))
                from_start = T.bind(tirx.Select(asked < 0, asked + i64(height), asked))
                row = T.bind(tirx.max(i64(0), tirx.min(from_start, i64(height) - 1)))
                write = T.bind((block * i64(height) + row) * i64(width))
                copy_row(unit, rows, T.bind((block * i64(count) + number) * i64(width)), out, write, width)
    return finished()


def _loop(size: Any) -> Any:
    return T.serial if isinstance(size, int) and size < _PARALLEL_ELEMENTS else T.parallel
