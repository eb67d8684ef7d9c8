"""What a kernel of a recurrence over time computes, as a value: equal ones share a kernel."""

from __future__ import annotations

from dataclasses import dataclass

from autocast.kernels.specs.program import Dim
from autocast.operators.own.recurrent import CELLS

#: The shape of a tensor, and its dtype.
Tensor = tuple[tuple[Dim, ...], str]


@dataclass(frozen=True)
class Recurrence:
    """All steps of one direction of a recurrent layer, or, `backward`, their adjoints from the last to the first.

    Attributes
    ----------
    cell
        `lstm`, `gru` or `rnn`.
    arguments, results
        Those of the operator of that name (`autocast.operators.own.recurrent`).
    reverse
        Whether the layer begins with the last step.
    activation
        Of a plain recurrent net: `tanh` or `relu`.
    backward
        Whether this is the backward operator.
    """

    cell: str
    arguments: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    reverse: bool = False
    activation: str = "tanh"
    backward: bool = False

    @property
    def steps(self) -> Dim:
        """How many steps there are."""
        return self.arguments[0][0][0]

    @property
    def batch(self) -> Dim:
        """How many sequences go through them."""
        return self.arguments[0][0][1]

    @property
    def hidden(self) -> int:
        """Numbers in a state."""
        (_, hidden), _ = self.arguments[1]
        assert isinstance(hidden, int)
        return hidden

    @property
    def gates(self) -> int:
        """Matrices of the recurrent weight."""
        return CELLS[self.cell].gates

    @property
    def weight_dtype(self) -> str:
        """How the recurrent weight is stored."""
        return self.arguments[1][1]

    @property
    def states(self) -> dict[int, int]:
        """The results that are states while steps are taken, with the arguments that they begin as."""
        if self.cell == "lstm":
            return {1: 4, 2: 5} if self.backward else {1: 2, 2: 3}
        return {1: len(self.arguments) - 1}

    @property
    def operand(self) -> int:
        """Numbers that a step multiplies by the weight, for each sequence: a state, or the adjoints of all gates."""
        return self.hidden * (self.gates if self.backward else 1)
