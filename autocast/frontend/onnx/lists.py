"""Operators on lists of tensors, and on tensors that may be none, where it is known what is in the lists.

s = SequenceConstruct(x, y)     z = Identity(y)
z = SequenceAt(s, 1)            n = Constant(2)
n = SequenceLength(s)           c = Concat(x, y)
c = ConcatFromSequence(s)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from autocast.frontend.onnx.functions import graphs_of
from autocast.frontend.onnx.loops import constant, constants_of, joined
from autocast.frontend.onnx.operators import LISTS

#: Tensors are split into as many parts at most.
MOST_PARTS = 1024


def resolved(model: onnx.ModelProto) -> bool:
    """Whether there was a node on a list that is known; it is replaced, in place, by nodes on its tensors.

    What is in a list is known where tensors are put together, or split into parts, and places are constants.
    """
    if not any(node.op_type in LISTS for node in model.graph.node):
        return False
    return _Resolver(model).resolve()


def without_maps(model: onnx.ModelProto) -> None:
    """Have the graph return tables in place of lists of maps, one for each row, which `ZipMap` makes of the columns.

    z = ZipMap(x) <classlabels_int64s = [0, 1]>     z = Identity(x)
    """
    tables = {name for node in model.graph.node if node.op_type == "ZipMap" for name in node.output}
    for node in model.graph.node:
        if node.op_type == "ZipMap":
            node.CopyFrom(helper.make_node("Identity", node.input, node.output, node.name))
    for value in model.graph.output:
        if value.name in tables:
            value.type.CopyFrom(helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None))


class _Resolver:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 1)
        self.constants = constants_of(self.graph, MOST_PARTS)
        given = (*self.graph.input, *self.graph.value_info, *self.graph.output)
        self.types = {value.name: value.type for value in given}
        #: The names of the tensors in a list, by the list's name.
        self.lists: dict[str, list[str]] = {}
        #: What is in a value that may be none: a name, or None.
        self.options: dict[str, str | None] = {}

    def resolve(self) -> bool:
        """Whether a node was replaced or is read no more."""
        kept: list[onnx.NodeProto] = []
        for node in self.graph.node:
            translate = _RESOLVERS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            nodes = None if translate is None else translate(self, node)
            kept += [node] if nodes is None else nodes
        read = {name for node in kept for graph in _bodies(node) for inner in graph.node for name in inner.input}
        read |= {value.name for graph in graphs_of(self.graph) for value in graph.output}
        left: list[onnx.NodeProto] = []
        for node in reversed(kept):
            if read.isdisjoint(node.output) and any(name in self.lists or name in self.options for name in node.output):
                continue
            read.update(node.input)
            left.append(node)
        changed = [*map(id, left[::-1])] != [*map(id, self.graph.node)]
        copies = [_copy(node) for node in left[::-1]]
        del self.graph.node[:]
        self.graph.node.extend(copies)
        return changed

    def place(self, node: onnx.NodeProto, at: int, count: int) -> int | None:
        """A place in a list of `count` tensors that an input says, the last if it is left out; None if not known."""
        if at >= len(node.input) or not node.input[at]:
            return count - 1
        value = self.constants.get(node.input[at])
        place = None if value is None else int(value.item())
        if place is None or not -count <= place < count:
            return None
        return place % count


def _bodies(node: onnx.NodeProto) -> list[Any]:
    return [graph for one in node.attribute if one.type == onnx.AttributeProto.GRAPH for graph in graphs_of(one.g)]


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


_Nodes = Sequence[onnx.NodeProto] | None


def _same(name: str, to: str) -> onnx.NodeProto:
    return helper.make_node("Identity", [name], [to])


def _construct(resolver: _Resolver, node: onnx.NodeProto) -> _Nodes:
    resolver.lists[node.output[0]] = [*node.input]
    return None


def _at(resolver: _Resolver, node: onnx.NodeProto) -> _Nodes:
    tensors = resolver.lists.get(node.input[0])
    place = None if tensors is None else resolver.place(node, 1, len(tensors))
    return None if tensors is None or place is None else [_same(tensors[place], node.output[0])]


def _length(resolver: _Resolver, node: onnx.NodeProto) -> _Nodes:
    tensors = resolver.lists.get(node.input[0])
    return None if tensors is None else [constant(node.output[0], np.array(len(tensors)))]


def _insert(resolver: _Resolver, node: onnx.NodeProto) -> _Nodes:
    tensors = resolver.lists.get(node.input[0])
    if tensors is not None:
        place = resolver.place(node, 2, len(tensors) + 1)
        if place is not None and len(node.input) > 2 and resolver.constants[node.input[2]].item() < 0:
            place -= 1  # before the last
        if place is not None:
            resolver.lists[node.output[0]] = [*tensors[:place], node.input[1], *tensors[place:]]
    return None


def _erase(resolver: _Resolver, node: onnx.NodeProto) -> _Nodes:
    tensors = resolver.lists.get(node.input[0])
    place = None if tensors is None else resolver.place(node, 1, len(tensors))
    if tensors is not None and place is not None:
        resolver.lists[node.output[0]] = [*tensors[:place], *tensors[place + 1 :]]
    return None


def _concat(resolver: _Resolver, node: onnx.NodeProto) -> _Nodes:
    tensors = resolver.lists.get(node.input[0])
    attributes = {one.name: one.i for one in node.attribute}
    axis, out = attributes["axis"], node.output[0]
    if not tensors:
        return None
    if attributes.get("new_axis"):
        return joined(tensors, axis, out, resolver.opset)
    return [helper.make_node("Concat", tensors, [out], axis=axis)]


def _split(resolver: _Resolver, node: onnx.NodeProto) -> _Nodes:
    """Into parts as long as a list says, or all of one length but the last; without lengths into rows."""
    attributes = {one.name: one.i for one in node.attribute}
    axis, out = attributes.get("axis", 0), node.output[0]
    given = resolver.constants.get(node.input[1]) if len(node.input) > 1 and node.input[1] else np.array(1)
    dims = resolver.types[node.input[0]].tensor_type.shape.dim if node.input[0] in resolver.types else []
    if given is None or not dims or out in resolver.lists:
        return None
    if given.ndim:
        lengths = given.tolist()
    elif dims[axis].HasField("dim_value"):
        size, length = dims[axis].dim_value, int(given)
        lengths = [min(length, size - begin) for begin in range(0, size, length)]
    else:
        return None
    if len(lengths) > MOST_PARTS:
        return None
    names = [f"{out}/{at}" for at in range(len(lengths))]
    resolver.lists[out] = names
    removes = len(node.input) < 2 and not attributes.get("keepdims", 1)
    parts = [f"{name}/row" for name in names] if removes else names
    nodes = [*_splits(resolver.opset, node.input[0], lengths, axis, parts)]
    for part, name in zip(parts, names, strict=True) if removes else ():
        nodes += _squeezed(resolver.opset, part, axis, name)
    return [*nodes, helper.make_node("SequenceConstruct", names, [out])]


def _splits(opset: int, name: str, lengths: list[int], axis: int, parts: list[str]) -> Sequence[onnx.NodeProto]:
    if opset < 13:
        return [helper.make_node("Split", [name], parts, axis=axis, split=lengths)]
    said = f"{parts[0]}/lengths"
    return [constant(said, np.array(lengths)), helper.make_node("Split", [name, said], parts, axis=axis)]


def _squeezed(opset: int, name: str, axis: int, to: str) -> Sequence[onnx.NodeProto]:
    if opset < 13:
        return [helper.make_node("Squeeze", [name], [to], axes=[axis])]
    return [constant(f"{to}/axis", np.array([axis])), helper.make_node("Squeeze", [name, f"{to}/axis"], [to])]


def _identity(resolver: _Resolver, node: onnx.NodeProto) -> _Nodes:
    name, out = node.input[0], node.output[0]
    if name in resolver.lists:
        resolver.lists[out] = resolver.lists[name]
    if name in resolver.options:
        resolver.options[out] = resolver.options[name]
    return None


def _optional(resolver: _Resolver, node: onnx.NodeProto) -> _Nodes:
    resolver.options[node.output[0]] = next(filter(None, node.input), None)
    return None


def _has_element(resolver: _Resolver, node: onnx.NodeProto) -> _Nodes:
    name = next(filter(None, node.input), None)
    is_known = name is None or name in resolver.options or not _may_be_none(resolver, name)
    has = name is not None and resolver.options.get(name, name) is not None
    return [constant(node.output[0], np.array(has))] if is_known else None


def _may_be_none(resolver: _Resolver, name: str) -> bool:
    return name in resolver.types and resolver.types[name].HasField("optional_type")


def _get_element(resolver: _Resolver, node: onnx.NodeProto) -> _Nodes:
    name = node.input[0]
    inner = resolver.options.get(name, None if _may_be_none(resolver, name) else name)
    if inner is None:
        return None
    if inner in resolver.lists:
        resolver.lists[node.output[0]] = resolver.lists[inner]
        return None
    is_list = inner in resolver.types and not resolver.types[inner].HasField("tensor_type")
    return None if is_list else [_same(inner, node.output[0])]


_RESOLVERS: dict[str, Callable[[_Resolver, onnx.NodeProto], _Nodes]] = {
    "ConcatFromSequence": _concat,
    "Identity": _identity,
    "Optional": _optional,
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _construct,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}
