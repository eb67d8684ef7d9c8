"""`Loop` and `Scan` that return a row for each step, of which nobody knows before how many there are.

The rows of all steps are tensors that go along as states; each step writes its own. A `Scan` has as many steps as its
inputs are long, and a `Loop` as its trip count says. One that its condition ends runs twice: first to count its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import onnx
import tvm
from onnx import helper
from tvm import relax, tirx

from autocast.errors import UnsupportedError
from autocast.frontend.importing.loops import counted, looped_with_rows, sequence
from autocast.frontend.onnx.control import (
    Importer,
    as_number,
    captured_by,
    described,
    loop,
    names_for,
    results_of,
    trip_count,
)
from autocast.ir import dtype_of, shape_of

op = relax.op

#: From the number of a step, the states before it, and what is captured, to the inputs of a body.
Given = Callable[[relax.Expr, Sequence[relax.Expr], Sequence[relax.Expr]], Sequence[relax.Expr]]

_Nodes = Mapping[str, Any]


def scan(importer: Importer, node: onnx.NodeProto, name: str) -> None:
    """The last states of a `Scan`, and the rows of all steps."""
    asked = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    body, bb, count = asked["body"], importer.bb, int(asked["num_scan_inputs"])
    values = [importer._nodes[one] for one in node.input]
    states, scanned = values[:-count], values[-count:]
    places, backwards = (asked.get(f"scan_input_{what}", [0] * count) for what in ("axes", "directions"))
    sizes = [shape_of(x) for x in scanned]
    if any(one is None for one in sizes):
        raise UnsupportedError("it goes over tensors whose sizes depend on values; expected sizes that are known")
    axes = [int(axis) % len(one or ()) for axis, one in zip(places, sizes, strict=True)]
    size = (sizes[0] or ())[axes[0]]

    def given(number: relax.Expr, before: Sequence[relax.Expr], outer: Sequence[relax.Expr]) -> list[relax.Expr]:
        last = counted(bb, size, -1)
        rows = [
            bb.emit(op.take(x, bb.emit(op.subtract(last, number)) if back else number, axis=axis, mode="clip"))
            for x, axis, back in zip(outer, axes, backwards, strict=True)
        ]
        return [*before, *rows]

    made = len(body.output) - len(states)
    axes_out, turned = (asked.get(f"scan_output_{what}", [0] * made) for what in ("axes", "directions"))
    after, rows = _with_rows(importer, name, body, states, size, given, scanned, 0, turned)
    results = [*after, *(_moved(bb, row, int(axis)) for row, axis in zip(rows, axes_out, strict=True))]
    importer._nodes.update((out, value) for out, value in zip(node.output, results, strict=False) if out)


def loop_with_rows(importer: Importer, node: onnx.NodeProto, name: str) -> None:
    """The last states of a `Loop`, and the rows of all steps."""
    body = next(one.g for one in node.attribute if one.name == "body")
    states = [importer._nodes[one] for one in node.input[2:]]
    size = _steps(importer, node, name)

    def given(number: relax.Expr, before: Sequence[relax.Expr], outer: Sequence[relax.Expr]) -> list[relax.Expr]:
        return [number, relax.const(True), *before]

    turned = [0] * (len(body.output) - 1 - len(states))
    after, rows = _with_rows(importer, name, body, states, size, given, [], 1, turned)
    importer._nodes.update((out, value) for out, value in zip(node.output, [*after, *rows], strict=False) if out)


def _steps(importer: Importer, node: onnx.NodeProto, name: str) -> Any:
    """How many steps a `Loop` has: a number, an expression, or a name for what a tensor holds."""
    bb, count = importer.bb, trip_count(importer, node)
    known = None if count is None else importer._sizes.array(node.input[0], importer._nodes)
    if known is not None:
        (size,) = known.flat
        return max(size, 0) if isinstance(size, int) else size
    if count is None:
        count = loop(importer, node, f"{name}_steps")
    size = tirx.Var(f"{name}_steps", "int64")
    counted = op.maximum(op.reshape(count, [1]), relax.const(0, "int64"))
    bb.match_cast(bb.emit(op.tensor_to_shape(bb.emit(counted))), relax.ShapeType([size]))
    return size


def _with_rows(
    importer: Importer,
    name: str,
    body: onnx.GraphProto,
    states: Sequence[relax.Expr],
    size: Any,
    given: Given,
    read: Sequence[relax.Expr],
    skipped: int,
    backwards: Sequence[int],
) -> tuple[list[relax.Var], list[relax.Var]]:
    """The states after `size` steps, and a tensor of the rows of each result.

    Parameters
    ----------
    given
        The inputs of the body, of which `read` is captured.
    skipped
        How many results of the body come before its states.
    backwards
        Whether the rows of a result are in the order from the last step to the first.
    """
    bb = importer.bb
    names = [value.name for value in body.input]
    outer = captured_by(importer, body)
    start, states = relax.const(0, "int64"), [bb.emit(state) for state in states]

    def once(number: relax.Expr, before: Sequence[relax.Expr], captured: Sequence[relax.Expr]) -> relax.Tuple:
        values = dict(zip(names, given(number, before, captured[len(outer) :]), strict=True))
        values |= dict(zip(outer, captured, strict=False))
        made = results_of(importer, body, values).fields[skipped:]
        after = [as_number(bb, one, state.ty, both=True) for one, state in zip(made, states, strict=False)]
        return relax.Tuple([*after, *made[len(states) :]])

    captured = [*outer.values(), *read]
    types = sequence(bb, partial(once, start, states, captured)).body.ty.fields
    before, after = ([described(one) for one in group] for group in ([x.ty for x in states], types[: len(states)]))
    if before != after:
        raise UnsupportedError(
            f"its states are {', '.join(before)} before a step and {', '.join(after)} after it; expected the same "
            "dtypes and sizes, unless the number of steps is a constant"
        )
    rows = [_empty(bb, size, type) for type in types[len(states) :]]
    shown = names_for(importer, body, [*types, *(x.ty for x in (*states, *captured))], [size])

    def step(
        number: relax.Expr, before: Sequence[relax.Expr], captured: Sequence[relax.Expr]
    ) -> tuple[Sequence[relax.Expr], Sequence[relax.Expr]]:
        made = once(number, before, captured[: len(captured) - len(shown)]).fields
        return made[: len(states)], made[len(states) :]

    return looped_with_rows(bb, name, size, states, rows, [*captured, *shown], step, backwards)


def _empty(bb: relax.BlockBuilder, size: Any, type: tvm.ir.Type) -> relax.Expr:
    described(type)  # which refuses what has no sizes
    row = relax.Var("row", type)
    dtype = str(dtype_of(row))
    return bb.emit(op.full([size, *(shape_of(row) or ())], relax.const(0, dtype), dtype))


def _moved(bb: relax.BlockBuilder, rows: relax.Expr, axis: int) -> relax.Expr:
    """The first axis to another place."""
    rank = len(shape_of(rows) or ())
    order = [*range(1, rank)]
    order.insert(axis % rank, 0)
    return rows if axis % rank == 0 else bb.emit(op.permute_dims(rows, order))
