"""States of a `Loop` that each step makes longer are rows of its steps, joined behind it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from autocast.frontend.onnx.functions import graphs_of
from autocast.frontend.onnx.loops import constant


def with_rows(model: onnx.ModelProto) -> None:
    """Take out of loops, in place, the states to which each step appends something, and does no more.

    Before::                                           After::

        y = Loop (count, , start) {                        rows = Loop (count, ) {
            longer = Concat <axis = 0> (state, row)            row
        }                                                  }
                                                           y = Concat <axis = 0> (start, <rows as one>)
    """
    for graph in list(graphs_of(model.graph)):
        types = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            nodes.append(node)
            if node.op_type == "Loop" and node.domain in ("", "ai.onnx"):
                nodes += _taken_out(node, types)
        if len(nodes) != len(graph.node):
            kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
            del graph.node[:]
            graph.node.extend(kept)


def _taken_out(loop: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> list[onnx.NodeProto]:
    """Nodes that make of rows what were growing states of a loop, which returns the rows from here on."""
    body = next(one.g for one in loop.attribute if one.name == "body")
    known = types | {value.name: value.type for value in (*body.input, *body.value_info, *body.output)}
    made: list[onnx.NodeProto] = []
    for at in reversed(range(len(loop.input) - 2)):
        found = _appended(body, at, known)
        if found is None:
            continue
        for node in [one for one in body.node if found.only_appends.intersection(one.output)]:
            body.node.remove(node)
        start, result = loop.input[at + 2], loop.output[at]
        for names in (loop.input, body.input):
            del names[at + 2]
        del loop.output[at], body.output[at + 1]
        body.output.append(helper.make_tensor_value_info(found.row, found.dtype, None))
        loop.output.extend([""] * (len(body.output) - 2 - len(loop.output)))
        loop.output.append(f"{result}/rows")
        made += _joined(start, f"{result}/rows", result, found.axis, found.rank) if result else []
    return made


class _Appended(NamedTuple):
    """What each step appends to a state, along which axis of how many, its dtype, and the names of what does no more
    than that."""

    row: str
    axis: int
    rank: int
    dtype: int
    only_appends: set[str]


def _appended(body: onnx.GraphProto, at: int, types: dict[str, onnx.TypeProto]) -> _Appended | None:
    """What a step appends to a state; None if it does anything else with it."""
    reads = [name for graph in graphs_of(body) for node in graph.node for name in node.input]
    reads += [value.name for graph in graphs_of(body) for value in graph.output]
    by_name = {out: node for node in body.node for out in node.output}
    state, longer = body.input[at + 2].name, by_name.get(body.output[at + 1].name)
    if longer is None or longer.op_type != "Concat" or len(longer.input) != 2 or reads.count(longer.output[0]) != 1:
        return None
    before, row = longer.input
    only_appends = {longer.output[0]}
    while before != state:
        only_appends.add(before)
        node = by_name.get(before)
        if node is None or node.op_type not in ("Cast", "Identity") or reads.count(before) != 1:
            return None
        before = node.input[0]
    if reads.count(state) != 1 or row not in by_name:
        return None
    tensors = [types[name].tensor_type for name in (state, longer.output[0], row) if name in types]
    ranks = {len(one.shape.dim) for one in tensors if one.HasField("shape")}
    dtypes = {one.elem_type for one in tensors if one.elem_type}
    if len(ranks) != 1 or len(dtypes) != 1:
        return None
    (rank,), (dtype,) = ranks, dtypes
    axis = next(one.i for one in longer.attribute if one.name == "axis") % rank
    return _Appended(row, axis, rank, dtype, only_appends)


def _joined(start: str, rows: str, result: str, axis: int, rank: int) -> list[onnx.NodeProto]:
    """A start, and behind it, along an axis, what all rows have."""
    names = {part: f"{result}/{part}" for part in ("moved", "shape", "length", "whole", "joined")}
    order = [*range(1, axis + 1), 0, *range(axis + 1, rank + 1)]
    groups = {"before": [*range(axis)], "both": [axis, axis + 1], "after": [*range(axis + 2, rank + 1)]}
    nodes = [
        helper.make_node("Transpose", [rows], [names["moved"]], perm=order),
        helper.make_node("Shape", [names["moved"]], [names["shape"]]),
    ]
    for group, axes in groups.items():
        place, sizes = f"{result}/{group} axes", f"{result}/{group}"
        nodes.append(constant(place, np.array(axes, "int64")))
        nodes.append(helper.make_node("Gather", [names["shape"], place], [sizes], axis=0))
    parts = [f"{result}/before", names["length"], f"{result}/after"]
    return [
        *nodes,
        helper.make_node("ReduceProd", [f"{result}/both"], [names["length"]], keepdims=1),
        helper.make_node("Concat", parts, [names["whole"]], axis=0),
        helper.make_node("Reshape", [names["moved"], names["whole"]], [names["joined"]]),
        helper.make_node("Concat", [start, names["joined"]], [result], axis=axis),
    ]
