"""Lists of which nobody knows how long they are, whose tensors are the rows of one tensor.

s = SplitToSequence(x)             y = Gather(x, i)
y = SequenceAt(s, i)

s = Loop(count, , SequenceEmpty)   rows = Loop(count, )
c = ConcatFromSequence(s)          c = <rows as one>
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from autocast.frontend.onnx.functions import graphs_of
from autocast.frontend.onnx.loops import constant
from autocast.frontend.onnx.operators import LISTS


@dataclass(frozen=True)
class _Rows:
    """A list's tensors: along an axis of a tensor of `rank` axes, which they have no more, or with a length of 1."""

    tensor: str
    axis: int = 0
    rank: int | None = None
    keeps: bool = False


def as_rows(model: onnx.ModelProto) -> None:
    """Take such lists out, in place, where all that reads them is known here."""
    graphs = list(graphs_of(model.graph))
    values = [value for graph in graphs for value in (*graph.input, *graph.value_info, *graph.output)]
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in values
        if value.type.tensor_type.HasField("shape")
    }
    made = {out: node for graph in graphs for node in graph.node for out in node.output}
    for graph in graphs:
        for node in [one for one in graph.node if one.domain in ("", "ai.onnx")]:
            if node.op_type == "SplitToSequence" and len(node.input) < 2 and node.input[0] in ranks:
                attributes = {one.name: one.i for one in node.attribute}
                rank = ranks[node.input[0]]
                keeps = bool(attributes.get("keepdims", 1))
                _replace(graphs, node.output[0], _Rows(node.input[0], attributes.get("axis", 0) % rank, rank, keeps))
            elif node.op_type == "Loop":
                _of_steps(graphs, node, made)
    read = {name for graph in graphs for node in graph.node for name in node.input}
    read |= {value.name for graph in graphs for value in graph.output}
    for graph in graphs:
        for node in [one for one in graph.node if one.op_type in LISTS and read.isdisjoint(one.output)]:
            graph.node.remove(node)


def _of_steps(graphs: Sequence[onnx.GraphProto], loop: onnx.NodeProto, made: dict[str, onnx.NodeProto]) -> None:
    """Make rows of the lists to which each step of a loop adds a tensor, if that is all that it does with them."""
    body = next(one.g for one in loop.attribute if one.name == "body")
    for at in reversed(range(len(loop.input) - 2)):
        start, state, after = made.get(loop.input[at + 2]), body.input[at + 2].name, made.get(body.output[at + 1].name)
        is_empty = start is not None and start.op_type == "SequenceEmpty"
        if not is_empty or after is None or after.op_type != "SequenceInsert" or after not in body.node:
            continue
        result, row = loop.output[at], after.input[1]
        readers = [node for graph in graphs_of(body) for node in graph.node if state in node.input]
        if [*after.input] != [state, row] or len(readers) != 1 or not _replace(graphs, result, _Rows(f"{result}/rows")):
            continue
        body.node.remove(after)
        for names in (loop.input, body.input):
            del names[at + 2]
        del loop.output[at], body.output[at + 1]
        body.output.append(helper.make_tensor_value_info(row, onnx.TensorProto.UNDEFINED, None))
        loop.output.extend([""] * (len(body.output) - 2 - len(loop.output)))
        loop.output.append(f"{result}/rows")


def _replace(graphs: Sequence[onnx.GraphProto], name: str, rows: _Rows) -> bool:
    """Whether all nodes that read a list could become nodes that read its rows."""
    if any(value.name == name for graph in graphs for value in graph.output):
        return False
    found = [(graph, node) for graph in graphs for node in graph.node if name in node.input]
    written = [nodes for _, node in found if node.op_type in _READERS and (nodes := _READERS[node.op_type](node, rows))]
    if len(written) != len(found):
        return False
    for (graph, node), (*before, last) in zip(found, written, strict=True):
        for one in before:
            graph.node.insert([*map(id, graph.node)].index(id(node)), one)
        node.CopyFrom(last)
    return True


_Nodes = list[onnx.NodeProto] | None


def _at(node: onnx.NodeProto, rows: _Rows) -> _Nodes:
    place, out = node.input[1], node.output[0]
    if not rows.keeps:
        return [helper.make_node("Gather", [rows.tensor, place], [out], axis=rows.axis)]
    return [
        constant(f"{out}/one", np.array([1])),
        helper.make_node("Reshape", [place, f"{out}/one"], [f"{out}/place"]),
        helper.make_node("Gather", [rows.tensor, f"{out}/place"], [out], axis=rows.axis),
    ]


def _length(node: onnx.NodeProto, rows: _Rows) -> _Nodes:
    out = node.output[0]
    return [
        constant(f"{out}/axis", np.array(rows.axis)),
        helper.make_node("Shape", [rows.tensor], [f"{out}/shape"]),
        helper.make_node("Gather", [f"{out}/shape", f"{out}/axis"], [out]),
    ]


def _concat(node: onnx.NodeProto, rows: _Rows) -> _Nodes:
    attributes = {one.name: one.i for one in node.attribute}
    axis, out = attributes["axis"], node.output[0]
    if rows.keeps:
        is_whole = not attributes.get("new_axis") and axis % (rows.rank or 1) == rows.axis
        return [helper.make_node("Identity", [rows.tensor], [out])] if is_whole else None
    if attributes.get("new_axis"):
        if axis == rows.axis:
            return [helper.make_node("Identity", [rows.tensor], [out])]
        if rows.rank is None:
            return None
        order = [one for one in range(rows.rank) if one != rows.axis]
        order.insert(axis % rows.rank, rows.axis)
        return [helper.make_node("Transpose", [rows.tensor], [out], perm=order)]
    if axis != 0 or rows.axis != 0:
        return None
    parts = {"both": (0, 2), "rest": (2, np.iinfo("int64").max)}
    nodes = [helper.make_node("Shape", [rows.tensor], [f"{out}/shape"])]
    for part, ends in parts.items():
        names = [f"{out}/{part} {which}" for which in ("begin", "end")]
        nodes += [constant(name, np.array([end])) for name, end in zip(names, ends, strict=True)]
        nodes.append(helper.make_node("Slice", [f"{out}/shape", *names], [f"{out}/{part}"]))
    return [
        *nodes,
        helper.make_node("ReduceProd", [f"{out}/both"], [f"{out}/length"], keepdims=1),
        helper.make_node("Concat", [f"{out}/length", f"{out}/rest"], [f"{out}/sizes"], axis=0),
        helper.make_node("Reshape", [rows.tensor, f"{out}/sizes"], [out]),
    ]


_READERS: dict[str, Callable[[onnx.NodeProto, _Rows], _Nodes]] = {
    "ConcatFromSequence": _concat,
    "SequenceAt": _at,
    "SequenceLength": _length,
}
