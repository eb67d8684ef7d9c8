"""Recurrences over time: layers of an LSTM, a GRU and a plain recurrent net, without the products with their inputs.

Those are one matrix product for all steps, which comes before. What is left of a step is the product with the state
that the step before handed on. With x, the projected input of a step, whose gates lie side by side as torch has them,
and the recurrent weight W of shape (gates * hidden, hidden):

    LSTM    i, f, g, o = x + W h;  c' = sigmoid(f) c + sigmoid(i) tanh(g);  h' = sigmoid(o) tanh(c')
    GRU     r, z, n = W h;  m = tanh(x_n + sigmoid(x_r + r) (n + bias));  h' = m + sigmoid(x_z + z) (h - m)
    RNN     h' = tanh(x + W h), or relu

States stay in the dtype of the first ones, in which products are summed. The results are the hidden states of all
steps, in the order of the steps and in the dtype of the weight, as they were multiplied by it, and the last states;
`reverse` begins with the last step.

When a recurrence is differentiated, the states of all steps are known, and so are all sums that the gates are functions
of, from one matrix product. The backward operators take these, go through time once more for the cells of an LSTM, and
back for the adjoints of the sums: for a GRU, of r + x_r, z + x_z, x_n and n + bias, side by side.

Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997; Cho et al., "Learning phrase representations using
RNN encoder-decoder", 2014, with the reset gate after the product, as in cuDNN; Werbos, "Backpropagation through time:
what it does and how to do it", 1990.
"""

from __future__ import annotations

from typing import NamedTuple

import tvm
from tvm import relax

from autocast.errors import IllFormedModuleError
from autocast.ir.views import dtype_of, shape_of
from autocast.operators.operator import Operator, enter


class Cell(NamedTuple):
    """What a kind of cell has.

    Attributes
    ----------
    gates
        Matrices of its recurrent weight, one below the other.
    sums
        How many sums of a step and a unit its backward operator is given, and gives the adjoints of.
    """

    gates: int
    sums: int


#: By the name of the forward operator, without `relax.nn.`.
CELLS = {"lstm": Cell(4, 4), "gru": Cell(3, 4), "rnn": Cell(1, 1)}

#: What the functions of a plain recurrent net may be.
ACTIVATIONS = ("tanh", "relu")


def _define(name: str, arguments: str, shapes: str, results: str, summary: str) -> Operator:
    """An operator whose arguments have `shapes`, words of letters and factors of h, and whose results are `results`.

    A result is one letter or number of its shape for each dimension, and the argument whose dtype it has: "tbh:0".
    """
    wanted, fields = shapes.split(), [result.split(":") for result in results.split()]

    def infer(call: relax.Call) -> tvm.ir.Type:
        sizes = _sizes(call, wanted)
        return tvm.ir.TupleType(
            [
                relax.TensorType([_extent(sizes, letter) for letter in _letters(shape)], dtype_of(call.args[int(like)]))
                for shape, like in fields
            ]
        )

    return enter(Operator(name, tuple(arguments.split()), infer, None), summary)


def _letters(shape: str) -> list[str]:
    """The dimensions of a shape: "tb4h" is t, b and 4h."""
    letters: list[str] = []
    for character in shape:
        if letters and letters[-1].isdigit():
            letters[-1] += character
        else:
            letters.append(character)
    return letters


def _extent(sizes: dict[str, object], letter: str) -> object:
    return int(letter[0]) * sizes["h"] if letter[0].isdigit() else sizes[letter]  # type: ignore[operator]


def _sizes(call: relax.Call, wanted: list[str]) -> dict[str, object]:
    """The extents by their letters; h is that of the last axis of the last argument, a state or the adjoint of one."""
    shapes = [shape_of(operand) for operand in call.args]
    sizes: dict[str, object] = {}
    for shape, letters in zip(reversed(shapes), reversed([_letters(word) for word in wanted]), strict=True):
        fits = shape is not None and len(shape) == len(letters)
        for extent, letter in zip(shape or (), letters, strict=False):
            known = _extent(sizes, letter) if letter[-1] in sizes else sizes.setdefault(letter, extent)
            fits = fits and not (isinstance(extent, int) and isinstance(known, int) and extent != known)
        if not fits:
            types = ", ".join(str(operand.ty) for operand in call.args)
            raise IllFormedModuleError(
                f"{call.op.name}: got ({types}), expected shapes ({', '.join(wanted)}) of t steps, a batch of b, and h "
                "hidden units"
            )
    return sizes


lstm = _define(
    "relax.nn.lstm",
    "gates weight hidden cell",
    "tb4h 4hh bh bh",
    "tbh:1 bh:2 bh:3",
    "The hidden states of all steps of an LSTM, and its last hidden state and cell",
)
gru = _define(
    "relax.nn.gru",
    "gates weight bias hidden",
    "tb3h 3hh h bh",
    "tbh:1 bh:3",
    "The hidden states of all steps of a GRU, and its last one",
)
rnn = _define(
    "relax.nn.rnn",
    "gates weight hidden",
    "tbh hh bh",
    "tbh:1 bh:2",
    "The hidden states of all steps of a plain recurrent net, and its last one",
)
lstm_backward = _define(
    "relax.grad.lstm_backward",
    "sums weight cell g g_hidden g_cell",
    "tb4h 4hh bh tbh bh bh",
    "tb4h:1 bh:4 bh:5",
    "The adjoints of the sums of all steps of an LSTM, and of its first hidden state and cell",
)
gru_backward = _define(
    "relax.grad.gru_backward",
    "sums weight previous g g_hidden",
    "tb4h 3hh tbh tbh bh",
    "tb4h:1 bh:4",
    "The adjoints of the sums of all steps of a GRU, and of its first hidden state",
)
rnn_backward = _define(
    "relax.grad.rnn_backward",
    "hiddens weight g g_hidden",
    "tbh hh tbh bh",
    "tbh:1 bh:3",
    "The adjoints of the sums of all steps of a plain recurrent net, and of its first hidden state",
)
