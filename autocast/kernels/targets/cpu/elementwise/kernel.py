"""Generate kernels that compute groups of elementwise operators: every element is read once and written once.

What runs is a loop over lines, each a loop over vectors and a masked one at its end. Dimensions that all arguments
treat alike are one, so where nothing broadcasts there is a single line, and its length need not be a multiple of
anything.
"""

from __future__ import annotations

import math
from functools import partial

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, ceil_div, i64, minimum, quotient, remainder
from autocast.kernels.specs.program import Program, in_place
from autocast.kernels.targets.cpu.instruction_sets import instruction_set
from autocast.kernels.targets.cpu.vector import llvm_ir, vector_math
from autocast.kernels.targets.cpu.vector.evaluator import Evaluator, Sizes, declare
from autocast.kernels.targets.cpu.vector.expression import VANISHING
from autocast.kernels.targets.cpu.vector.streaming import streamed, with_overwriting
from autocast.kernels.targets.cpu.vector.unit import VectorUnit, importing, kernel_function, shared_loop

#: Elements that one core computes before it looks where the next ones are.
_CHUNK = 4096

#: Vectors that are computed in one turn of the innermost loop.
_UNROLL = 4

#: Steps times elements of the least work that is worth waking other cores.
_PARALLEL_WORK = 1 << 17


def elementwise_kernel(program: Program, target: tvm.target.Target, name: str) -> tirx.PrimFunc:
    """A destination-passing TIR function `name(*arguments, *outputs)` that computes `program` on `target`."""
    unit = VectorUnit(instruction_set(target))
    far = streamed([(shape, dtype) for _, shape, dtype in program.outputs], unit.lanes)
    return with_overwriting(partial(_kernel, program, unit, name), far)


def _kernel(program: Program, unit: VectorUnit, name: str, far: frozenset[int]) -> tirx.PrimFunc:
    functions = tuple(sorted({step[0] for step in program.steps} & set(vector_math.FUNCTIONS)))
    code = vector_math.math_ir(unit.lanes, functions) + llvm_ir.conversions_and_accesses(unit.isa)
    with kernel_function(name) as finished:
        T.func_attr({"autocast.in_place": in_place(program, range(len(program.outputs)))})
        sizes = Sizes()
        arguments, outputs = declare(program, sizes)
        with importing(code):
            _emit(Evaluator(program, unit, sizes, arguments), outputs, far)
    return finished()


def _vanishes(program: Program, number: int) -> bool:
    """Whether a step, or one that it chooses from, makes subnormal numbers of so many that those have to be right."""
    found, pending = {number}, [number]
    while pending:
        step = pending.pop()
        if program.steps[step][0] == "where":
            choices = set(program.operands(step)[1:]) - found
            found |= choices
            pending += choices
        elif _makes_subnormal(program, step):
            return True
    return False


def _makes_subnormal(program: Program, number: int) -> bool:
    name, operands = program.steps[number][0], program.operands(number)
    numbers = [program.steps[operand][1] for operand in operands if program.steps[operand][0] == "constant"]
    if name == "multiply" and not numbers:
        return len(program.arguments) == 1  # of a number with what is computed from it
    limit = VANISHING.get(name, 0.0)
    return limit == math.inf or any(abs(size) < limit for size in numbers)


def _emit(evaluator: Evaluator, outputs: list[tirx.Buffer], far: frozenset[int]) -> None:
    evaluator.columns = evaluator.unit.opaque(evaluator.columns)
    lines, columns = evaluator.rows, evaluator.columns
    aligned = (
        isinstance(lines, int) and isinstance(columns, int) and (lines == 1 or columns % evaluator.unit.lanes == 0)
    )
    far = far if aligned else frozenset()
    chunks = ceil_div(columns, _CHUNK)
    count = i64(lines * chunks)

    def emit(alone: bool) -> None:
        with T.serial(0, count) if alone else shared_loop(count, streams=bool(far)) as task:
            line = T.bind(quotient(task, chunks))
            evaluator.at(line)
            begin = T.bind(remainder(task, chunks) * _CHUNK)
            length = columns if chunks == 1 else minimum(columns - begin, _CHUNK)
            _chunk(evaluator, outputs, line, begin, length, far)

    is_small = lines * columns * len(evaluator.program.steps) < _PARALLEL_WORK
    if isinstance(is_small, bool):
        emit(is_small)
        return
    with T.If(is_small):
        with T.Then():
            emit(True)
        with T.Else():
            emit(False)


def _chunk(
    evaluator: Evaluator,
    outputs: list[tirx.Buffer],
    line: tirx.Expr,
    begin: tirx.Expr,
    length: Extent,
    far: frozenset[int],
) -> None:
    """Compute `length` elements of a line, from column `begin` on."""
    unit, lanes = evaluator.unit, evaluator.unit.lanes
    step = lanes * _UNROLL
    start = T.bind(line * i64(evaluator.columns))
    vanishing = {
        i for i, (number, _, _) in enumerate(evaluator.program.outputs) if _vanishes(evaluator.program, number)
    }

    def compute(offset: tirx.Expr, count: Extent | None) -> None:
        column = begin + offset
        memo: dict[int, tirx.Expr] = {}
        # All is read before anything is stored: results may take the place of arguments.
        values = [evaluator.vector(number, column, count, memo) for number, _, _ in evaluator.program.outputs]
        for output, (buffer, value) in enumerate(zip(outputs, values, strict=True)):
            unit.store(buffer, start + column, value, count, streamed=output in far, exactly=output in vanishing)

    # Chunks are whole turns, so what is left over is known as soon as the length of lines is.
    left = evaluator.columns % step
    with T.serial(0, i64(length // step)) as turn:
        for vector in range(_UNROLL):
            compute(turn * step + vector * lanes, None)
    if isinstance(left, int) and left == 0:
        return
    done = length // step * step
    with T.serial(0, i64((length - done) // lanes)) as turn:
        compute(done + turn * lanes, None)
    if isinstance(left, int) and left % lanes == 0:
        return
    rest = T.bind(i64(length % lanes))
    with T.If(rest > 0), T.Then():
        compute(length - rest, rest)
