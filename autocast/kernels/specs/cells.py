"""The arithmetic of recurrent cells, for scalars and for vectors: one element of every gate, and of every state.

Who emits loops over steps, sequences and units gives an `Element` for each place, and has the sums of products ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tvm import tirx

from autocast.kernels.specs.recurrent import Recurrence


class Functions(NamedTuple):
    """Scalars or vectors of TIR, as cells compute with them; `keep` binds what several read."""

    sigmoid: Callable[[tirx.Expr], tirx.Expr]
    tanh: Callable[[tirx.Expr], tirx.Expr]
    keep: Callable[[tirx.Expr], tirx.Expr]
    number: Callable[[float], tirx.Expr]

    def slope_of_sigmoid(self, y: tirx.Expr) -> tirx.Expr:
        """From its value."""
        return y * (self.number(1.0) - y)

    def slope_of_tanh(self, y: tirx.Expr) -> tirx.Expr:
        """From its value."""
        return self.number(1.0) - y * y

    def where_positive(self, x: tirx.Expr, y: tirx.Expr) -> tirx.Expr:
        """`y` where `x` is above 0, or NaN; else 0."""
        return tirx.Select(x <= self.number(0.0), self.number(0.0), y)


Vectors = Sequence[tirx.Expr]


def lstm(f: Functions, x: Vectors, products: Vectors, cell: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
    """The next hidden state and cell."""
    i, forget, g, o = (f.keep(a + b) for a, b in zip(x, products, strict=True))
    cell = f.keep(f.sigmoid(forget) * cell + f.sigmoid(i) * f.tanh(g))
    return f.keep(f.sigmoid(o) * f.tanh(cell)), cell


def gru(f: Functions, x: Vectors, products: Vectors, bias: tirx.Expr, hidden: tirx.Expr) -> tirx.Expr:
    """The next hidden state."""
    reset, update = (f.keep(f.sigmoid(f.keep(a + b))) for a, b in zip(x[:2], products[:2], strict=True))
    new = f.keep(f.tanh(f.keep(x[2] + reset * (products[2] + bias))))
    return f.keep(new + update * (hidden - new))


def rnn(f: Functions, x: tirx.Expr, product: tirx.Expr, activation: str) -> tirx.Expr:
    """The next hidden state."""
    total = f.keep(x + product)
    return f.keep(f.tanh(total) if activation == "tanh" else f.where_positive(total, total))


def next_cell(f: Functions, sums: Vectors, cell: tirx.Expr) -> tirx.Expr:
    """Of an LSTM."""
    return f.keep(f.sigmoid(sums[1]) * cell + f.sigmoid(sums[0]) * f.tanh(sums[2]))


def lstm_backward(
    f: Functions, sums: Vectors, cell: tirx.Expr, of_hidden: tirx.Expr, of_cell: tirx.Expr
) -> tuple[list[tirx.Expr], tirx.Expr]:
    """The adjoints of the sums, and of the cell before the step, from those of the states after it."""
    i, forget, o = (f.keep(f.sigmoid(sums[gate])) for gate in (0, 1, 3))
    g = f.keep(f.tanh(sums[2]))
    squashed = f.keep(f.tanh(f.keep(forget * cell + i * g)))
    of_cell = f.keep(of_cell + of_hidden * o * f.slope_of_tanh(squashed))
    of_sums = [
        of_cell * g * f.slope_of_sigmoid(i),
        of_cell * cell * f.slope_of_sigmoid(forget),
        of_cell * i * f.slope_of_tanh(g),
        of_hidden * squashed * f.slope_of_sigmoid(o),
    ]
    return [f.keep(value) for value in of_sums], f.keep(of_cell * forget)


def gru_backward(
    f: Functions, sums: Vectors, hidden: tirx.Expr, of_hidden: tirx.Expr
) -> tuple[list[tirx.Expr], tirx.Expr]:
    """The adjoints of the sums, and what that of the hidden state before the step has beside products."""
    reset, update = (f.keep(f.sigmoid(sums[gate])) for gate in (0, 1))
    new = f.keep(f.tanh(f.keep(sums[2] + reset * sums[3])))
    of_new = f.keep(of_hidden * (f.number(1.0) - update) * f.slope_of_tanh(new))
    of_sums = [
        of_new * sums[3] * f.slope_of_sigmoid(reset),
        of_hidden * (hidden - new) * f.slope_of_sigmoid(update),
        of_new,
        of_new * reset,
    ]
    return [f.keep(value) for value in of_sums], f.keep(of_hidden * update)


def rnn_backward(f: Functions, hidden: tirx.Expr, of_hidden: tirx.Expr, activation: str) -> tirx.Expr:
    """The adjoint of the sum, from the hidden state after the step."""
    slope = f.slope_of_tanh(hidden)
    return f.keep(of_hidden * slope if activation == "tanh" else f.where_positive(hidden, of_hidden))


class Element(Protocol):
    """Where an element, or a vector of them, is found at one step, of one sequence, for one unit.

    Attributes
    ----------
    functions
        What is computed with.
    """

    functions: Functions

    def step(self, argument: int, gate: int = 0) -> tirx.Expr:
        """That of a gate in an argument which has a part for each step."""

    def constant(self, argument: int) -> tirx.Expr:
        """That of an argument which is a vector over the units."""

    def state(self, result: int) -> tirx.Expr:
        """That of a state, which is kept in a result."""

    def product(self, gate: int = 0) -> tirx.Expr:
        """The sum of products with the weight."""

    def kept_cell(self) -> tirx.Expr:
        """What `keep_cell` kept at this step."""

    def put_step(self, value: tirx.Expr, gate: int = 0) -> None:
        """Store that of a gate in the result which has a part for each step."""

    def put_state(self, result: int, value: tirx.Expr) -> None:
        """Store that of a state."""

    def put_operand(self, value: tirx.Expr, gate: int = 0) -> None:
        """Store what the next step multiplies by the weight."""

    def keep_cell(self, value: tirx.Expr) -> None:
        """Store the cell that this step begins with."""


def forward_step(spec: Recurrence, e: Element) -> None:
    """Emit a step."""
    f, gates = e.functions, range(spec.gates)
    x, products = [e.step(0, gate) for gate in gates], [e.product(gate) for gate in gates]
    if spec.cell == "lstm":
        hidden, cell = lstm(f, x, products, e.state(2))
        e.put_state(2, cell)
    elif spec.cell == "gru":
        hidden = gru(f, x, products, e.constant(2), e.state(1))
    else:
        hidden = rnn(f, x[0], products[0], spec.activation)
    e.put_state(1, hidden)
    e.put_step(hidden)
    e.put_operand(hidden)


def cell_step(e: Element) -> None:
    """Emit what is computed again of a step of an LSTM: its cell, from the sums of its gates."""
    cell = e.state(2)
    e.keep_cell(cell)
    e.put_state(2, next_cell(e.functions, [e.step(0, gate) for gate in range(3)], cell))


def backward_step(spec: Recurrence, e: Element) -> None:
    """Emit a step back: the adjoint of a hidden state is that of the result, and what the step after it adds."""
    f = e.functions
    of_hidden = f.keep(e.product() + e.state(1) + e.step(len(spec.arguments) - 1 - len(spec.states)))
    rest = f.number(0.0)
    if spec.cell == "lstm":
        sums = [e.step(0, gate) for gate in range(4)]
        of_sums, of_cell = lstm_backward(f, sums, e.kept_cell(), of_hidden, e.state(2))
        e.put_state(2, of_cell)
    elif spec.cell == "gru":
        of_sums, rest = gru_backward(f, [e.step(0, gate) for gate in range(4)], e.step(2), of_hidden)
    else:
        of_sums = [rnn_backward(f, e.step(0), of_hidden, spec.activation)]
    e.put_state(1, rest)
    for gate, value in enumerate(of_sums):
        e.put_step(value, gate)
    multiplied = [of_sums[0], of_sums[1], of_sums[3]] if spec.cell == "gru" else of_sums
    for gate, value in enumerate(multiplied):
        e.put_operand(value, gate)
