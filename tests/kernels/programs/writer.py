"""What steps are written with: a program as it grows, and draws from what it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from hypothesis import strategies as st
from tvm import relax

from tests.kernels.programs.program import Program, Step


class NothingFits(Exception):
    """No value of the program is what a step needs."""


class Writer:
    """Adds steps to a program; `values` are the program's values at example inputs, which say shapes and sizes."""

    def __init__(self, draw: Callable, program: Program, low: str, differentiable: bool) -> None:
        self.draw, self.program, self.low, self.differentiable = draw, program, low, differentiable
        self.varying = program.varying
        self.values = [value for value, _ in program.inputs]
        self.dtypes = [dtype for _, dtype in program.inputs]

    def one_of(self, options: Iterable) -> Any:
        """Some of `options`."""
        return self.draw(st.sampled_from(list(options)))

    def pick(self, condition: Callable[[torch.Tensor], bool] = lambda _: True) -> int:
        """The number of some float tensor that is no parameter; late ones are likelier."""
        fits = [
            i
            for i in range(len(self.values))
            if self.values[i].is_floating_point() and (i < self.program.num_input or i >= len(self.program.inputs))
            if condition(self.values[i])
        ]
        if not fits:
            raise NothingFits
        return self.one_of(fits[::-1][:4] + fits)

    def parameters(self, condition: Callable[[torch.Tensor], bool]) -> list[int]:
        """The numbers of the parameters that fit."""
        return [i for i in range(self.program.num_input, len(self.program.inputs)) if condition(self.values[i])]

    def parameter(self, condition: Callable[[torch.Tensor], bool]) -> int:
        """The number of some parameter that fits."""
        fits = self.parameters(condition)
        if not fits:
            raise NothingFits
        return self.one_of(fits)

    def axis(self, i: int) -> int:
        """Some axis of a value."""
        return self.draw(st.integers(0, self.values[i].ndim - 1))

    def known_axis(self, i: int) -> int:
        """Some axis of a value whose extent is known when the program is compiled."""
        first = 1 if self.varying else 0
        if first >= self.values[i].ndim:
            raise NothingFits
        return self.draw(st.integers(first, self.values[i].ndim - 1))

    def add(
        self,
        name: str,
        operands: tuple[int, ...],
        made: Callable[..., relax.Expr],
        reference: Callable[..., torch.Tensor],
        *,
        moves: bool = False,
    ) -> int:
        """Add a step; the number of its value."""
        return self._append(Step(name, operands, made, reference, self.dtypes[operands[0]], moves))

    def cast(self, i: int, dtype: str) -> int:
        """Add a cast of a value; the number of the result."""
        # The rounding may go the other way where the value was rounded before: as low as the narrower of the two.
        rounded = dtype if dtype != "float32" else self.dtypes[i]
        number = self._append(Step("astype", (i,), lambda x: relax.op.astype(x, dtype), lambda x: x, rounded))
        self.dtypes[number] = dtype
        return number

    def same_dtype(self, i: int, j: int) -> int:
        """The value `j`, cast to the dtype of `i`."""
        return j if self.dtypes[i] == self.dtypes[j] else self.cast(j, self.dtypes[i])

    def _append(self, step: Step) -> int:
        self.program.steps.append(step)
        self.values.append(step.torch(*[self.values[i] for i in step.operands]))
        self.dtypes.append(step.dtype)
        return len(self.values) - 1
