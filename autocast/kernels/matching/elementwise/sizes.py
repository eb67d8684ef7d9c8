"""One kernel for groups that differ in their sizes only, such as the updates of all parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from autocast.kernels.specs.program import Program, Shape, Step

#: Whether a kernel stores any of its results, as (shape, dtype), past the caches.
Streams: TypeAlias = Callable[[Sequence[tuple[Sequence[int | str], str]]], bool]

#: From how many sizes on one kernel for any is less code than one for each: it is compiled twice, for one core and for
#: several, and for lines that end anywhere.
_SIZES = 3

#: Steps that depend on where their element is, or on how many there are.
_KNOWS_SIZES = ("column", "length", "position", "word")


def shared(programs: Iterable[Program], streams: Streams) -> dict[Program, Program]:
    """For each program the one to make a kernel of: itself, or one for any sizes that computes several."""
    alike: dict[Program, set[Program]] = defaultdict(set)
    for program in programs:
        alike[of_any_size(program, streams) or program].add(program)
    return {
        program: general if len(members) >= _SIZES else program
        for general, members in alike.items()
        for program in members
    }


def of_any_size(program: Program, streams: Streams) -> Program | None:
    """The same program with a name for each dimension; None where it depends on them, or is stored past the caches.

    It does not depend on them where each tensor has either as many elements as the space, whatever its shape, or one
    number for all of them.
    """
    space = program.space
    names: Shape = tuple(f"d{i}" for i in range(len(space)))
    one = (1,) * len(space)
    far = streams([(shape, dtype) for _, shape, dtype in program.outputs])
    if far or space == one or not all(isinstance(dim, int) for dim in space):
        return None
    general = {space: names, one: one}
    arguments = list(program.arguments)
    steps: list[Step] = []
    for step in program.steps:
        if step[0] in _KNOWS_SIZES:
            return None
        if step[0] == "load":
            _, number, view = step
            shape, dtype = program.arguments[number]
            if view not in general:
                return None
            if view == space:
                seen = names if shape == space else tuple(f"x{number}d{i}" for i in range(len(shape)))
                arguments[number] = (seen, dtype)
            step = ("load", number, general[view])
        steps.append(step)
    if any(shape != space for _, shape, _ in program.outputs):
        return None
    outputs = tuple((number, names, dtype) for number, _, dtype in program.outputs)
    return Program(tuple(arguments), names, tuple(steps), outputs)
