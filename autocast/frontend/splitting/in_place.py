"""Writes into what a program makes itself, as results: `relu_(conv(x))`, `y += x`."""

from __future__ import annotations

from collections import Counter
from operator import getitem

import torch
from torch import fx
from torch._ops import OpOverload

from autocast.frontend.exporting.checks import is_view, written_by
from autocast.frontend.nodes import is_composite

aten = torch.ops.aten

#: Composite operators whose results are no views. Others may return what they are given, and their schemas do not say
#: so: `reshape`, `to`.
_FRESH = {
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
    aten.avg_pool1d.default,
    aten.batch_norm.default,
    aten.conv1d.default,
    aten.conv1d.padding,
    aten.conv2d.default,
    aten.conv2d.padding,
    aten.conv3d.default,
    aten.conv3d.padding,
    aten.conv_transpose1d.default,
    aten.conv_transpose2d.input,
    aten.conv_transpose3d.input,
    aten.group_norm.default,
    aten.instance_norm.default,
    aten.layer_norm.default,
    aten.linear.default,
    aten.matmul.default,
    aten.max_pool1d.default,
    aten.max_pool2d.default,
    aten.max_pool3d.default,
    aten.pad.default,
    aten.scaled_dot_product_attention.default,
    aten.softmax.int,
}


def in_functional_form(graph: fx.Graph) -> bool:
    """Have each call of a graph that writes into what another made compute its result instead.

    Who reads what was written reads the result then.

    Returns
    -------
    bool
        False where that is another program: inputs or parameters are written, or what is written is read afterwards
        under another name (a view of it, or what it is a view of). The graph is of no use then.
    """
    memories, written = _Memories(), Counter[fx.Node]()
    given: set[fx.Node] = set()
    made: dict[fx.Node, int] = {}
    latest: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for operand in node.all_input_nodes:
            if operand in latest:
                node.replace_input_with(operand, latest[operand])
        if any(made[operand] < written[memories.of(operand)] for operand in node.all_input_nodes):
            return False
        before = memories.add(node)
        memory = memories.of(node)
        written[memory] = max(written[one] for one in before)
        if node.op == "placeholder" or not given.isdisjoint(before):
            given.add(memory)
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            function, target = _functional(node.target), node.args[0]
            if function is None or memory in given or not _makes(function, node):
                return False
            node.target = function
            written[memory] += 1
            latest |= {name: node for name, last in [*latest.items(), (target, target)] if last is target}
        made[node] = written[memory]
    return True


def select_what_is_written(graph: fx.Graph) -> None:
    """Rewrite `unbind` where its results are written: torch, to put them back, makes constants of all sizes.

    Before::                                             After::

        row = unbind(x)[0]                                   row = select(x, 0, 0)
        row.add_(1)                                          row.add_(1)
    """
    for write in list(graph.nodes):
        if not (isinstance(write.target, OpOverload) and write.target._schema.is_mutable):
            continue
        for view in written_by(write):
            while is_view(view):
                view = view.args[0]
                if view.target is aten.unbind.int:
                    view = _select(graph, view)


def _select(graph: fx.Graph, unbound: fx.Node) -> fx.Node:
    """Rewrite it; returns the tensor that it is a view of."""
    tensor, axis = unbound.args[0], unbound.args[1] if len(unbound.args) > 1 else unbound.kwargs.get("dim", 0)
    for part in list(unbound.users):
        with graph.inserting_before(part):
            selected = graph.call_function(aten.select.int, (tensor, axis, part.args[1]))
        selected.meta = dict(part.meta)
        part.replace_all_uses_with(selected)
        graph.erase_node(part)
    graph.erase_node(unbound)
    return tensor


class _Memories:
    """Which nodes may lie in one memory, by what operators say: torch's fake tensors do not always know."""

    def __init__(self) -> None:
        self._first: dict[fx.Node, fx.Node] = {}

    def of(self, node: fx.Node) -> fx.Node:
        """A node that stands for all that may lie in the memory of `node`."""
        while self._first[node] is not node:
            node = self._first[node]
        return node

    def add(self, node: fx.Node) -> list[fx.Node]:
        """Add a node, after those that it reads; returns what stood for the memories that are its own now."""
        before = [self.of(operand) for operand in self._sources(node)] or [node]
        for one in (node, *before):
            self._first[one] = before[0]
        return before

    @staticmethod
    def _sources(node: fx.Node) -> list[fx.Node]:
        """The operands of which a node may be a view."""
        if node.target is getitem:
            return list(node.all_input_nodes)
        if not isinstance(node.target, OpOverload) or node.target in _FRESH:
            return []
        if is_composite(node.target):
            return list(node.all_input_nodes)
        return [
            operand
            for argument, value in zip(node.target._schema.arguments, node.args, strict=False)
            if argument.alias_info is not None
            for operand in (value if isinstance(value, list | tuple) else [value])
        ]


def _functional(operator: OpOverload) -> OpOverload | None:
    """The operator that returns what `operator` writes into its first argument; None where it writes into others."""
    schema = operator._schema
    first, *others = schema.arguments
    written = [argument for argument in others if argument.alias_info is not None and argument.alias_info.is_write]
    name = schema.name.partition("::")[2]
    is_tensor = first.alias_info is not None and isinstance(first.type, torch.TensorType)
    if written or not is_tensor or not name.endswith("_") or torch.Tag.inplace_view in operator.tags:
        return None
    packet = getattr(getattr(torch.ops, operator.namespace), name[:-1], None)
    function: OpOverload | None = getattr(packet, operator._overloadname, None)
    return function


def _makes(function: OpOverload, node: fx.Node) -> bool:
    """Whether a function makes of a call's arguments a tensor of the call's type: it may widen what a write rounds."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    try:
        result, expected = function(*args, **kwargs), node.meta["val"]
    except Exception:  # of torch's: where all is traced, what goes wrong is said with a remedy
        return False
    return result.dtype is expected.dtype and [*map(str, result.shape)] == [*map(str, expected.shape)]
