"""A program that fails, made as small as it can be."""

from __future__ import annotations

from tests.programs.check import Outcome, check
from tests.programs.generate import SIZES, Program, inputs


def shrunk(program: Program, way: str, outcome: Outcome) -> Program:
    """A part of the program of which the same kind of outcome comes, and that torch runs."""
    for smaller in program.smaller():
        if _runs(smaller, way) and check(smaller, way).kind == outcome.kind:
            return shrunk(smaller, way, outcome)
    return program


def _runs(program: Program, way: str) -> bool:
    try:
        for sizes in SIZES:
            program.function()(*inputs(sizes, gradients=not way.startswith("imported")))
    except Exception:  # of torch: a name that is no more, or a shape that does not fit
        return False
    return True
