"""Plan a row kernel: in which sweep over the row each step is computed, and which values are kept between sweeps."""

from __future__ import annotations

from dataclasses import dataclass, field

from autocast.kernels.specs.program import Program, Step

#: Steps that combine all values of a row into one; `row_highest` is a maximum that overlooks NaN.
REDUCTIONS = ("row_sum", "row_product", "row_highest", "row_maximum", "row_minimum", "row_argmax", "row_argmin")
#: The value in one column, given by a row value; 0 where there is no such column.
PICK = "row_pick"
#: Steps whose value depends on what is before it in the row: computed once, in order.
SCANS = ("row_cumsum",)

#: About how many instructions a step takes for a vector: these are cheap or divide, all other functions count 20.
_COSTS = {
    **dict.fromkeys(
        ("add", "subtract", "multiply", "maximum", "minimum", "where", "relu", "negative", "abs", "clip"), 1
    ),
    **dict.fromkeys(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "square"), 1),
    **dict.fromkeys(("logical_and", "logical_or", "logical_not", "column", "constant", "round_bfloat16", "unfused"), 1),
    **dict.fromkeys(("divide", "sqrt", "rsqrt", "reciprocal"), 8),
    **dict.fromkeys(SCANS, 1000),
}
_OTHER_COST = 20
_KEPT_COST = 1
#: A value that costs more than this to compute again is kept; a row that is too long for the first cache costs more.
_WORTH_KEEPING = 3
_WORTH_KEEPING_FAR = 8


@dataclass
class Sweep:
    """What one pass over a row computes: numbers of steps that it reduces and keeps, positions of what it stores."""

    reductions: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    #: Row values that can be computed once this sweep is done, in order.
    row_values: list[int] = field(default_factory=list)


@dataclass
class SweepPlan:
    """The sweeps of a kernel; `first` are the row values that need none, `row_outputs` have one element for a row."""

    sweeps: list[Sweep]
    first: list[int]
    row_outputs: list[int]


def plan_sweeps(program: Program, row_dims: int, row_loads: frozenset[int], near: bool) -> SweepPlan:
    """Plan `program`, of whose loads `row_loads` have one value for a row; `near`: a row of float32 fits the L1 cache.

    The stage of a step is the number of sweeps that must be over before it can be computed; a reduction's sweep is the
    stage of its operand. A value that a later sweep needs again is kept if computing it again takes longer.
    """
    heads = [step[0] for step in program.steps]
    per_row, stages = [False] * len(heads), [0] * len(heads)
    for number, head in enumerate(heads):
        operands = program.operands(number)
        stages[number] = max((stages[operand] for operand in operands), default=0) + (head in REDUCTIONS)
        alike = bool(operands) and head not in SCANS and all(per_row[operand] for operand in operands)
        per_row[number] = head in (*REDUCTIONS, PICK, "constant", "length") or number in row_loads or alike
    wanted = sorted(_needed(program))
    rows = program.space[:-row_dims]
    row_shapes = (rows, (*rows, *[1] * row_dims))
    row_outputs = [at for at, (step, shape, _) in enumerate(program.outputs) if per_row[step] and shape in row_shapes]
    whole = {at: step for at, (step, _, _) in enumerate(program.outputs) if at not in row_outputs}
    count = max((stages[step] for step in wanted if heads[step] in REDUCTIONS), default=0)
    sweeps = [Sweep() for _ in range(max([count, *(stages[step] + 1 for step in whole.values())]))]
    first: list[int] = []
    for number in wanted:
        if heads[number] in REDUCTIONS:
            sweeps[stages[number] - 1].reductions.append(number)
        elif per_row[number] and program.operands(number):
            (sweeps[stages[number] - 1].row_values if stages[number] else first).append(number)
    for position, step in whole.items():
        sweeps[stages[step]].outputs.append(position)
    _keep(program, sweeps, per_row, _WORTH_KEEPING if near else _WORTH_KEEPING_FAR)
    return SweepPlan(sweeps, first, row_outputs)


def _needed(program: Program) -> set[int]:
    """The steps that outputs are computed from, themselves included."""
    needed: set[int] = set()
    waiting = [step for step, _, _ in program.outputs]
    while waiting:
        step = waiting.pop()
        if step not in needed:
            needed.add(step)
            waiting.extend(program.operands(step))
    return needed


def _keep(program: Program, sweeps: list[Sweep], per_row: list[bool], worth: int) -> None:
    """Decide what each sweep keeps for later ones."""
    computed: dict[int, Sweep] = {}
    kept: set[int] = set()

    def cost(number: int) -> int:
        if per_row[number]:
            return 0
        if number in kept:
            return _KEPT_COST
        return _cost(program, program.steps[number]) + sum(cost(operand) for operand in program.operands(number))

    def visit(number: int, sweep: Sweep, seen: set[int]) -> None:
        if per_row[number] or number in seen:
            return
        seen.add(number)
        if number in kept:
            return
        if number in computed and cost(number) > worth:
            kept.add(number)
            computed[number].kept.append(number)
            return
        for operand in program.operands(number):
            visit(operand, sweep, seen)

    for sweep in sweeps:
        roots = [program.operands(reduction)[0] for reduction in sweep.reductions]
        roots += [program.outputs[position][0] for position in sweep.outputs]
        seen: set[int] = set()
        for root in roots:
            visit(root, sweep, seen)
        for number in seen - kept:
            computed.setdefault(number, sweep)


def _cost(program: Program, step: Step) -> int:
    if step[0] == "load":
        return 1 if program.arguments[step[1]][1] == "float32" else 2
    return _COSTS.get(step[0], _OTHER_COST)
