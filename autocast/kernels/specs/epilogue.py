"""What kernels of products and convolutions do to their sums: a program, of which one step is the sum itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from autocast.errors import UnsupportedError
from autocast.kernels.specs.checks import STORAGE_DTYPES, check_one_of
from autocast.kernels.specs.program import Step, operands_of

#: The sum, as a step.
SUM: Step = ("sum",)

#: Steps that are no function.
_SOURCES = ("sum", "load", "constant")

#: How many functions are in a kernel's name.
_NAMED = 6


class Operand(NamedTuple):
    """What an epilogue reads beside the sums.

    Attributes
    ----------
    dtype
        How it is stored.
    per_column
        Whether it is a vector of shape (n,), such as a bias, and no tensor of the output's shape.
    """

    dtype: str
    per_column: bool = False


@dataclass(frozen=True)
class Epilogue:
    """What is done to the sums of a product, in float32, before they are stored.

    Attributes
    ----------
    steps
        A program as of `program.Program`: `("sum",)`, `("load", operand)`, `("constant", value)`, or a function of
        earlier steps; the last is what is stored.
    operands
        What its loads read.
    """

    steps: tuple[Step, ...] = (SUM,)
    operands: tuple[Operand, ...] = ()

    def __post_init__(self) -> None:
        for operand in self.operands:
            check_one_of("Epilogue.operands", operand.dtype, STORAGE_DTYPES)
        if not self.steps:
            raise UnsupportedError("Epilogue.steps: got none, expected at least the sum")
        for number, step in enumerate(self.steps):
            missing = [earlier for earlier in operands_of(step) if not 0 <= earlier < number]
            if missing or (step[0] == "load" and not 0 <= step[1] < len(self.operands)):
                raise UnsupportedError(
                    f"Epilogue.steps: step {number} is {step}, expected one of earlier steps and of the "
                    f"{len(self.operands)} operands"
                )

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that it applies, in order."""
        return tuple(step[0] for step in self.steps if step[0] not in _SOURCES)

    @property
    def reads_columns(self) -> bool:
        """Whether it matters in which column a sum is."""
        return any(operand.per_column for operand in self.operands)

    def same_in_all_rows(self) -> tuple[int, ...]:
        """The steps that are computed from constants and of what is per column."""
        found: set[int] = set()
        for number, step in enumerate(self.steps):
            if step[0] == "load":
                is_same = self.operands[step[1]].per_column
            else:
                is_same = step != SUM and found.issuperset(operands_of(step))
            if is_same:
                found.add(number)
        return tuple(sorted(found))

    def words(self) -> list[str]:
        """Its first functions as names of kernels have them; what is added is a bias or a residual."""
        words = []
        for step in self.steps:
            if step[0] in _SOURCES or step[0].startswith("round_"):
                continue
            loads = [self.steps[earlier] for earlier in operands_of(step) if self.steps[earlier][0] == "load"]
            is_added = step[0] == "add" and loads
            words.append(("bias" if self.operands[loads[0][1]].per_column else "residual") if is_added else step[0])
        return words[:_NAMED]
