"""`Loop` and `Scan` of as many steps as the model says become these steps, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import compose, helper, numpy_helper

from autocast.errors import UnsupportedError
from autocast.frontend.onnx.functions import graphs_of

#: Loops that would become more nodes than this stay what they are.
MOST_NODES = 8192

#: The same of a `Scan`, whose states keep their sizes: it may be a loop as well, which is compiled sooner.
MOST_NODES_OF_SCAN = 512


def unrolled(model: onnx.ModelProto) -> tuple[onnx.ModelProto, bool]:
    """The model, changed in place, with the steps of loops whose number is known, and whether there was one.

    A `Scan` has as many steps as its inputs are long. A `Loop` has as many as its trip count says, if that is a
    constant and its condition is left to be true.
    """
    unroller = _Unroller(model)
    kept: list[onnx.NodeProto] = []
    for node in model.graph.node:
        is_ours = node.domain in ("", "ai.onnx")
        steps = unroller.steps_of(node) if is_ours and node.op_type in ("Loop", "Scan") else None
        kept += [node] if steps is None else steps
    changed = len(kept) != len(model.graph.node)
    if changed:
        del model.graph.node[:]
        model.graph.node.extend(kept)
    return model, changed


def with_outer_initializers(model: onnx.ModelProto) -> None:
    """Make the initializers of branches and loops those of the model, under names of their own."""
    for number, graph in enumerate([*graphs_of(model.graph)][1:]):
        names = {tensor.name: f"{tensor.name}/{graph.name or 'graph'} {number}" for tensor in graph.initializer}
        for tensor in graph.initializer:
            moved = model.graph.initializer.add()
            moved.CopyFrom(tensor)
            moved.name = names[tensor.name]
        del graph.initializer[:]
        for node in (node for inner in graphs_of(graph) for node in inner.node):
            node.input[:] = [names.get(name, name) for name in node.input]
        returned = {value.name for value in graph.output} & set(names)
        graph.node.extend(_copy(names[name], name) for name in sorted(returned))


class _Unroller:
    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.graph = graph
        self.opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 1)
        self.constants = constants_of(graph)
        values = (*graph.input, *graph.value_info, *graph.output)
        self.shapes = {
            value.name: value.type.tensor_type.shape for value in values if value.type.tensor_type.HasField("shape")
        }
        self.shapes |= {
            tensor.name: helper.make_tensor_value_info("", 1, tensor.dims).type.tensor_type.shape
            for tensor in graph.initializer
        }

    def steps_of(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """The nodes of all steps of a loop; None if their number is not known."""
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        loop = _Scan(node, attributes, self) if node.op_type == "Scan" else _Loop(node, attributes, self)
        count = loop.count()
        if not count or count * len(loop.body.node) > loop.most:
            return None
        nodes: list[onnx.NodeProto] = []
        states = loop.states
        rows: list[list[str]] = [[] for _ in loop.rows]
        for step in range(count):
            prefix = f"{loop.name}/{step}/"
            made, given = loop.inputs(step, count, states, prefix)
            body = compose.add_prefix_graph(loop.body, prefix, rename_edges=True)
            binds = zip(given, body.input, strict=True)
            nodes += [*made, *(_copy(name, value.name) for name, value in binds), *body.node]
            results = [value.name for value in body.output][loop.skipped :]
            states = results[: len(states)]
            for row, name in zip(rows, results[len(states) :], strict=True):
                row.append(name)
        nodes += [_copy(name, out) for name, out in zip(states, node.output, strict=False) if out]
        for (out, axis, is_reversed), row in zip(loop.rows, rows, strict=True):
            if out:
                nodes += joined(row[::-1] if is_reversed else row, axis, out, self.opset)
        return nodes


def joined(names: Sequence[str], axis: int, out: str, opset: int) -> list[onnx.NodeProto]:
    """Nodes that join tensors along a new axis."""
    nodes = []
    for at, name in enumerate(names):
        long = f"{out}/{at} long"
        if opset < 13:
            nodes.append(helper.make_node("Unsqueeze", [name], [long], axes=[axis]))
        else:
            nodes += [
                constant(f"{long}/axis", np.array([axis])),
                helper.make_node("Unsqueeze", [name, f"{long}/axis"], [long]),
            ]
    whole = helper.make_node("Concat", [f"{out}/{at} long" for at in range(len(names))], [out], axis=axis)
    return [*nodes, whole]


class _Loop:
    """`Loop`: a trip count, a condition, and the states before the first step."""

    #: The first result of a body says whether to go on.
    skipped, most = 1, MOST_NODES

    def __init__(self, node: onnx.NodeProto, attributes: dict[str, Any], unroller: _Unroller) -> None:
        self.body: onnx.GraphProto = attributes["body"]
        self.name = node.name or next(filter(None, node.output))
        self.states = [*node.input[2:]]
        self.rows = [(out, 0, False) for out in node.output[len(self.states) :]]
        self.rows += [("", 0, False)] * (len(self.body.output) - 1 - len(self.states) - len(self.rows))
        self.node, self.constants = node, unroller.constants

    def count(self) -> int | None:
        trips, goes_on = self.node.input[0], self.node.input[1] if len(self.node.input) > 1 else ""
        if trips not in self.constants or (goes_on and goes_on not in self.constants):
            return None
        if goes_on and not self.constants[goes_on].item():
            return None
        return int(self.constants[trips].item()) if goes_on_always(self.body) else None

    def inputs(
        self, step: int, count: int, states: Sequence[str], prefix: str
    ) -> tuple[list[onnx.NodeProto], list[str]]:
        """Nodes that make a step's inputs, and their names."""
        made = [constant(f"{prefix}step", np.array(step)), constant(f"{prefix}goes on", np.array(True))]
        return made, [f"{prefix}step", f"{prefix}goes on", *states]


class _Scan:
    """`Scan`: the states before the first step, and tensors of which each step takes a row."""

    skipped, most = 0, MOST_NODES_OF_SCAN

    def __init__(self, node: onnx.NodeProto, attributes: dict[str, Any], unroller: _Unroller) -> None:
        self.body: onnx.GraphProto = attributes["body"]
        self.name = node.name or next(filter(None, node.output))
        if unroller.opset < 9:
            raise UnsupportedError(
                f"from_onnx: the node Scan {node.name!r}: that of opset 8, with a batch, is not imported; expected "
                "opset 9 or later"
            )
        count = int(attributes["num_scan_inputs"])
        self.states, self.scanned = [*node.input[:-count]], [*node.input[-count:]]
        outputs = len(self.body.output) - len(self.states)
        self.axes, self.backwards = (
            [*attributes.get(f"scan_input_{name}", [0] * count)] for name in ("axes", "directions")
        )
        axes, backwards = ([*attributes.get(f"scan_output_{name}", [0] * outputs)] for name in ("axes", "directions"))
        names = [*node.output[len(self.states) :], *[""] * outputs]
        self.rows = [(name, axis, bool(back)) for name, axis, back in zip(names, axes, backwards, strict=False)]
        self.shapes = unroller.shapes

    def count(self) -> int | None:
        shape = self.shapes.get(self.scanned[0])
        if shape is None:
            return None
        dim = shape.dim[self.axes[0]]
        return dim.dim_value if dim.HasField("dim_value") else None

    def inputs(
        self, step: int, count: int, states: Sequence[str], prefix: str
    ) -> tuple[list[onnx.NodeProto], list[str]]:
        """Nodes that make a step's inputs, and their names."""
        made: list[onnx.NodeProto] = []
        names = []
        for at, (name, axis, back) in enumerate(zip(self.scanned, self.axes, self.backwards, strict=True)):
            index, row = f"{prefix}index {at}", f"{prefix}row {at}"
            made += [
                constant(index, np.array(count - 1 - step if back else step)),
                helper.make_node("Gather", [name, index], [row], axis=axis),
            ]
            names.append(row)
        return made, [*states, *names]


def goes_on_always(body: onnx.GraphProto) -> bool:
    """Whether the condition that a loop's body returns is the one that it gets, or true."""
    name = body.output[0].name
    by_name = {out: node for node in body.node for out in node.output}
    while name in by_name and by_name[name].op_type == "Identity":
        name = by_name[name].input[0]
    known = constants_of(body)
    return name == body.input[1].name or (name in known and bool(known[name].item()))


def constants_of(graph: onnx.GraphProto, most: int = 1) -> dict[str, np.ndarray]:
    """The numbers among a graph's constants, and vectors of at most so many, by name."""
    found = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if len(tensor.dims) < 2 and tensor.name not in {value.name for value in graph.input}
    }
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value" and len(node.attribute[0].t.dims) < 2:
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return {name: array for name, array in found.items() if 0 < array.size <= most}


def constant(name: str, value: np.ndarray) -> onnx.NodeProto:
    """A node that gives a constant."""
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value, name))


def _copy(name: str, to: str) -> onnx.NodeProto:
    return helper.make_node("Identity", [name], [to])
