"""ONNX's recurrent layers: the products of all steps with their inputs are one, and a recurrence over time follows.

What torch's cells have no form of is written out step by step, or is a loop where the number of steps varies: other
activations, peepholes, and reset gates that come before the product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from tvm import relax, tirx
from tvm.relax import op

from autocast.errors import UnsupportedError
from autocast.frontend.importing.loops import counted, looped_with_rows
from autocast.frontend.onnx.recurrences import recurrence, recurrence_of_lengths
from autocast.ir import dtype_of, shape_of

_Activation = Callable[[relax.Expr], relax.Expr]

_ACTIVATIONS: dict[str, _Activation] = {
    "relu": op.nn.relu,
    "sigmoid": op.sigmoid,
    "softplus": op.nn.softplus,
    "tanh": op.tanh,
}

#: Layer -> (its activations where a node names none; how many matrices its weights are; how many states it has).
_LAYERS = {"RNN": (("Tanh",), 1, 1), "GRU": (("Sigmoid", "Tanh"), 3, 1), "LSTM": (("Sigmoid", "Tanh", "Tanh"), 4, 2)}

RECURRENT = frozenset(_LAYERS)


def recurrent(
    builder: relax.BlockBuilder, name: str, inputs: Sequence[relax.Expr | None], attributes: Mapping[str, Any]
) -> relax.Tuple:
    """The results of an `LSTM`, `GRU` or `RNN` node: all hidden states, then the last state or, of an LSTM, states.

    Parameters
    ----------
    builder
    name
        Which of the three.
    inputs
        The node's: X (steps, batch, input), W (directions, matrices * hidden, input), R (directions, matrices *
        hidden, hidden), B (directions, 2 * matrices * hidden), the lengths (batch), the first states (directions,
        batch, hidden), and the peepholes (directions, 3 * hidden); None for what it leaves out.
    attributes
        The node's.

    Raises
    ------
    UnsupportedError
        The node asks for another activation, for clipping or for coupled gates.
    """
    defaults, matrices, states = _LAYERS[name]
    given: list[Any] = [*inputs, *[None] * (8 - len(inputs))]
    x, w, r, bias, lengths, *first = given
    peepholes = first[2] if name == "LSTM" else None
    by_batch = attributes.get("layout", 0) == 1
    emit = builder.emit
    if by_batch:
        x = emit(op.permute_dims(x, [1, 0, 2]))
        first = [state if state is None else emit(op.permute_dims(state, [1, 0, 2])) for state in first[:states]]
    steps, batch, _ = _sizes(x)
    directions = int(_sizes(w)[0])
    hidden = int(_sizes(r)[2])
    activations = _activations(name, attributes, defaults, directions)
    whole = peepholes is None and (name != "GRU" or bool(attributes.get("linear_before_reset")))
    whole = whole and all(_is_of_torch(name, each) for each in activations)
    _check(name, attributes, 1 if whole else steps)
    rows, last = [], []
    for direction in range(directions):

        def mine(tensor: relax.Expr | None, at: int = direction) -> relax.Expr | None:
            return None if tensor is None else _at(builder, tensor, at)

        start = [
            emit(op.zeros((batch, hidden), dtype_of(x))) if state is None else mine(state) for state in first[:states]
        ]
        backwards = direction == 1 or attributes.get("direction") in (b"reverse", "reverse")
        if whole:
            weights = (mine(w), mine(r), *_halves(builder, mine(bias), matrices * hidden))
            activation = activations[direction][0]
            known = partial(recurrence, builder, name, weights=weights, first=start, activation=activation)
            if lengths is None:
                outputs, *ends = known(x=x, reverse=backwards)
            else:
                outputs, *ends = recurrence_of_lengths(builder, known, x, backwards, lengths)
            rows.append(outputs)
            last.append(ends)
            continue
        recurrence_weight = emit(op.permute_dims(mine(r)))
        weights = (recurrence_weight, *_halves(builder, mine(bias), matrices * hidden), mine(peepholes))
        make = partial(
            _CELLS[name],
            builder,
            activations=activations[direction],
            reset_after=bool(attributes.get("linear_before_reset")),
        )
        products = emit(op.matmul(x, op.permute_dims(mine(w))))
        run = _run if isinstance(steps, int | tirx.IntImm) else _run_any
        outputs, ends = run(builder, make, weights, products, start, lengths, backwards)
        rows.append(outputs)
        last.append(ends)
    if lengths is not None:  # of a sequence without steps nothing is left
        has_steps = emit(op.expand_dims(op.greater(lengths, relax.const(0, dtype_of(lengths))), axis=1))
        last = [[emit(op.where(has_steps, end, op.zeros_like(end))) for end in ends] for ends in last]
    every = emit(op.stack(rows, axis=1))  # steps, directions, batch, hidden
    finals = [emit(op.stack([ends[at] for ends in last], axis=0)) for at in range(states)]
    if by_batch:
        every = emit(op.permute_dims(every, [2, 0, 1, 3]))
        finals = [emit(op.permute_dims(state, [1, 0, 2])) for state in finals]
    return relax.Tuple([every, *finals])


def _is_of_torch(name: str, activations: Sequence[_Activation]) -> bool:
    """Whether the operators of recurrences have these activations."""
    if name == "RNN":
        return activations[0] in (op.tanh, op.nn.relu)
    return [_ACTIVATIONS[one.lower()] for one in _LAYERS[name][0]] == activations


#: Those of the states, turned; both halves of the bias, and the peepholes, or None.
_Weights: TypeAlias = tuple[relax.Expr, relax.Expr | None, relax.Expr | None, relax.Expr | None]


class _Cell:
    """One direction of a layer, as a function of a step's products with its input and of the states before it."""

    def __init__(
        self,
        builder: relax.BlockBuilder,
        weights: _Weights,
        activations: Sequence[_Activation],
        reset_after: bool,
    ) -> None:
        self.builder = builder
        self.recurrence, self.input_bias, self.recurrent_bias, self.peepholes = weights
        self.activations = activations
        self.reset_after = reset_after

    def parts(self, tensor: relax.Expr, count: int) -> list[relax.Expr]:
        return _parts(self.builder, tensor, count)

    def gates(self, products: relax.Expr, state: relax.Expr) -> relax.Expr:
        """What all gates are activations of."""
        return _plus(op.add(_plus(products, self.input_bias), op.matmul(state, self.recurrence)), self.recurrent_bias)

    def step(self, products: relax.Expr, states: list[relax.Expr]) -> list[relax.Expr]:
        """The next states, the hidden one first."""
        raise NotImplementedError


class _Plain(_Cell):
    def step(self, products: relax.Expr, states: list[relax.Expr]) -> list[relax.Expr]:
        return [self.activations[0](self.gates(products, states[0]))]


class _Lstm(_Cell):
    def step(self, products: relax.Expr, states: list[relax.Expr]) -> list[relax.Expr]:
        hidden, cell = states
        gate, candidate, output = self.activations
        i, o, f, c = self.parts(self.gates(products, hidden), 4)
        if self.peepholes is not None:
            peep_i, peep_o, peep_f = self.parts(self.peepholes, 3)
            i, f = op.add(i, op.multiply(peep_i, cell)), op.add(f, op.multiply(peep_f, cell))
        cell = self.builder.emit(op.add(op.multiply(gate(f), cell), op.multiply(gate(i), candidate(c))))
        if self.peepholes is not None:
            o = op.add(o, op.multiply(peep_o, cell))
        return [op.multiply(gate(o), output(cell)), cell]


class _Gru(_Cell):
    def step(self, products: relax.Expr, states: list[relax.Expr]) -> list[relax.Expr]:
        (hidden,) = states
        gate, candidate = self.activations
        z, r, h = self.parts(_plus(products, self.input_bias), 3)
        if self.reset_after:
            from_z, from_r, from_h = self.parts(_plus(op.matmul(hidden, self.recurrence), self.recurrent_bias), 3)
            update, reset = gate(op.add(z, from_z)), gate(op.add(r, from_r))
            new = candidate(op.add(h, op.multiply(reset, from_h)))
        else:
            matrices = self.parts(self.recurrence, 3)
            biases = [None] * 3 if self.recurrent_bias is None else self.parts(self.recurrent_bias, 3)
            gates = [
                gate(_plus(op.add(part, op.matmul(hidden, matrix)), bias))
                for part, matrix, bias in zip((z, r), matrices, biases, strict=False)
            ]
            update, reset = gates
            new = candidate(_plus(op.add(h, op.matmul(op.multiply(reset, hidden), matrices[2])), biases[2]))
        new = self.builder.emit(new)
        return [op.add(op.multiply(update, op.subtract(hidden, new)), new)]


_CELLS: dict[str, type[_Cell]] = {"RNN": _Plain, "GRU": _Gru, "LSTM": _Lstm}


def _run(
    builder: relax.BlockBuilder,
    make: Callable[[_Weights], _Cell],
    weights: _Weights,
    products: relax.Expr,
    states: list[relax.Expr],
    lengths: relax.Expr | None,
    backwards: bool,
) -> tuple[relax.Expr, list[relax.Expr]]:
    """The hidden states of all steps, in the order of the steps, and the states after the last."""
    count, cell = int(_sizes(products)[0]), make(weights)
    rows: list[relax.Expr] = []
    for step in reversed(range(count)) if backwards else range(count):
        number = None if lengths is None else relax.const(step, dtype_of(lengths))
        row, states = _stepped(builder, cell, _at(builder, products, step), states, lengths, number)
        rows.append(row)
    return builder.emit(op.stack(rows[::-1] if backwards else rows, axis=0)), states


def _run_any(
    builder: relax.BlockBuilder,
    make: Callable[[_Weights], _Cell],
    weights: _Weights,
    products: relax.Expr,
    states: list[relax.Expr],
    lengths: relax.Expr | None,
    backwards: bool,
) -> tuple[relax.Expr, list[relax.Expr]]:
    """The same of a number of steps that varies."""
    given = [products, *weights, lengths]
    captured = [one for one in given if one is not None]
    count = _sizes(products)[0]

    def step(
        number: relax.Expr, before: Sequence[relax.Expr], outer: Sequence[relax.Expr]
    ) -> tuple[list[relax.Expr], list[relax.Expr]]:
        inner = iter(outer)
        own_products, *parts, own_lengths = (None if one is None else next(inner) for one in given)
        place = builder.emit(op.subtract(counted(builder, count, -1), number)) if backwards else number
        row = builder.emit(op.take(own_products, place, axis=0, mode="clip"))
        place = place if own_lengths is None else builder.emit(op.astype(place, dtype_of(own_lengths)))
        cell = make((parts[0], parts[1], parts[2], parts[3]))
        result, after = _stepped(builder, cell, row, list(before), own_lengths, place)
        return after, [result]

    rows = builder.emit(op.zeros((count, *_sizes(states[0])), dtype_of(states[0])))
    after, (whole,) = looped_with_rows(builder, "steps", count, states, [rows], captured, step, [backwards])
    return whole, after


def _stepped(
    builder: relax.BlockBuilder,
    cell: _Cell,
    products: relax.Expr,
    states: list[relax.Expr],
    lengths: relax.Expr | None,
    number: relax.Expr | None,
) -> tuple[relax.Expr, list[relax.Expr]]:
    """A step's hidden state, and the states after it: a sequence that has ended keeps its states, and is zero."""
    after = [builder.emit(state) for state in cell.step(products, states)]
    if lengths is None:
        return after[0], after
    on = builder.emit(op.expand_dims(op.greater(lengths, number), axis=1))
    row = builder.emit(op.where(on, after[0], op.zeros_like(after[0])))
    return row, [builder.emit(op.where(on, new, old)) for new, old in zip(after, states, strict=True)]


def _check(name: str, attributes: Mapping[str, Any], steps: Any) -> None:
    asks = [
        ("no steps", isinstance(steps, int | tirx.IntImm) and int(steps) == 0),
        ("clip", "clip" in attributes),
        ("input_forget=1", bool(attributes.get("input_forget"))),
    ]
    for what, is_asked in asks:
        if is_asked:
            raise UnsupportedError(
                f"{name} with {what} is not imported; expected at least one step, without clip and input_forget"
            )


def _activations(
    name: str, attributes: Mapping[str, Any], defaults: Sequence[str], directions: int
) -> list[list[_Activation]]:
    """The activations of each direction."""
    given = [one.decode() if isinstance(one, bytes) else one for one in attributes.get("activations", ())]
    names = given or [*defaults] * directions
    unknown = [one for one in names if one.lower() not in _ACTIVATIONS]
    if unknown:
        raise UnsupportedError(
            f"{name} with the activation {unknown[0]} is not imported; expected {', '.join(_ACTIVATIONS)}"
        )
    found = [_ACTIVATIONS[one.lower()] for one in names]
    each = len(defaults)
    return [found[at * each : (at + 1) * each] for at in range(directions)]


def _sizes(tensor: relax.Expr) -> tuple[Any, ...]:
    sizes = shape_of(tensor)
    if sizes is None:
        raise UnsupportedError("a tensor whose number of axes is not known is not imported; expected three axes")
    return tuple(sizes)


def _at(builder: relax.BlockBuilder, tensor: relax.Expr, index: int) -> relax.Expr:
    """`tensor[index]`."""
    row = op.strided_slice(tensor, axes=[0], begin=[index], end=[index + 1])
    return builder.emit(op.squeeze(row, axis=[0]))


def _parts(builder: relax.BlockBuilder, tensor: relax.Expr, count: int) -> list[relax.Expr]:
    whole = builder.emit(op.split(tensor, count, axis=-1))
    return [builder.emit(relax.TupleGetItem(whole, at)) for at in range(count)]


def _halves(
    builder: relax.BlockBuilder, bias: relax.Expr | None, size: int
) -> tuple[relax.Expr | None, relax.Expr | None]:
    """Of a bias, what is added to products with inputs and with states."""
    if bias is None:
        return None, None
    first, second = _parts(builder, bias, 2)
    return first, second


def _plus(tensor: relax.Expr, bias: relax.Expr | None) -> relax.Expr:
    return tensor if bias is None else op.add(tensor, bias)
