"""Generate reductions over any axes: columns are combined some rows at a time, rows in chunks, by all cores.

Sums are made of blocks: eight rows, or eight vectors, are added in a tree, a block of some such trees in float32, and
blocks with what rounding lost of them. So the error grows with the size of a block and not with that of the tensor.
"""

from __future__ import annotations

import tvm
from tvm import tirx

from autocast.kernels.specs.reductions import Reduce
from autocast.kernels.targets.cpu.instruction_sets import cores, instruction_set
from autocast.kernels.targets.cpu.reductions.columns import Columns
from autocast.kernels.targets.cpu.reductions.rows import Rows
from autocast.kernels.targets.cpu.rows.reductions import CALLED, lanes_ir
from autocast.kernels.targets.cpu.vector import llvm_ir, vector_math
from autocast.kernels.targets.cpu.vector.evaluator import Evaluator, Sizes, declare
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, importing, kernel_function


def reduce(spec: Reduce, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(*arguments, *results)` that computes `spec` on `target`."""
    unit = VectorUnit(instruction_set(target))
    functions = {step[0] for step in spec.program.steps} & set(vector_math.FUNCTIONS) | set(
        CALLED.get(spec.function, ())
    )
    code = vector_math.math_ir(unit.lanes, tuple(sorted(functions))) + llvm_ir.conversions_and_accesses(unit.isa)
    with kernel_function(name) as finished:
        sizes = Sizes()
        arguments, outs = declare(spec.program, sizes)
        with importing(code + lanes_ir(unit.lanes)):
            evaluator = Evaluator(spec.program, unit, sizes, arguments, row_dims=spec.tail)
            kind = Rows if spec.reduces_last else Columns
            kind(spec, evaluator, sizes, outs, cores(target)).emit()
    return finished()
