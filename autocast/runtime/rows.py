"""Rows of tables that inputs number: what a kernel reads or writes for a number without a row is another row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autocast.errors import InputError
from autocast.runtime.sizes import Size, evaluate
from autocast.runtime.tensors import array_of_cpu


@dataclass(frozen=True)
class Rows:
    """The rows that the numbers of an input name.

    Attributes
    ----------
    count
        How many there are.
    table, axis
        Of which tensor, along which axis.
    from_end
        Whether numbers below 0 count from the end.
    ignored
        A number that names none: a label of what has no class.
    """

    count: Size
    table: str
    axis: int = 0
    from_end: bool = False
    ignored: int | None = None

    def check(self, name: str, given: Any, sizes: Mapping[str, int]) -> None:
        """Check the numbers of the input `name`, if they are in the memory of the CPU.

        Raises
        ------
        InputError
            One has no row: torch and ONNX's runtimes refuse it, too.
        """
        numbers, count = array_of_cpu(given), evaluate(self.count, sizes)
        if numbers is None or not numbers.size or count is None:
            return
        least = -count if self.from_end else 0
        if least <= np.minimum.reduce(numbers, axis=None) and np.maximum.reduce(numbers, axis=None) < count:
            return
        wrong = (numbers < least) | (numbers >= count)
        if self.ignored is not None:
            wrong &= numbers != self.ignored
        if not wrong.any():
            return
        place = tuple(int(at[0]) for at in wrong.nonzero())
        expected = f"{least} to {count - 1}" if count else "none"
        along = "rows" if self.axis == 0 else f"places along axis {self.axis}"
        raise InputError(
            f"main: input {name} has {numbers[place]} at {list(place)}, expected {expected}: it numbers the {along} of "
            f"{self.table}. Pass numbers of what there is: of words, those of the tokenizer that the model was trained "
            "with"
        )
