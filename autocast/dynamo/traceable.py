"""What Dynamo alone writes into its graphs, as what torch.export traces."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from autocast.frontend.exporting.autocast_blocks import enter_blocks


def write_data(graph: fx.Graph) -> None:
    """Rewrite what is assigned to `.data`, in a graph that infers or trains: AOTAutograd takes writes alone.

    Before::                                             After::

        s = torch.Tensor.set_(w, v)                          d = w.detach(); d.copy_(v.detach())
    """
    for node in [one for target in _assignments() for one in graph.find_nodes(op="call_function", target=target)]:
        if len(node.args) == 2 and _is_written(*node.args):
            tensor, value = node.args
            with graph.inserting_before(node):
                to, new = (graph.call_method("detach", (one,)) for one in (tensor, value))
                graph.call_method("copy_", (to, new))
            for user in list(node.users):
                if getattr(user.target, "__name__", "") == "_lower_version_count_by_1":
                    user.replace_all_uses_with(tensor)
                    graph.erase_node(user)
            node.replace_all_uses_with(tensor)
            graph.erase_node(node)
            graph.owning_module.recompile()


def make_traceable(body: fx.GraphModule) -> None:
    """Rewrite a graph that infers, and those of its parts.

    Before::                                             After::

        y = tag_activation_checkpoint(part, x)               y = part(x)
        d = torch._C._autograd._get_data_attr(w)             d = w.detach()
        s = operator.pow(-1, x)                              s = pow(-1, x)
    """
    for module in body.modules():
        if isinstance(module, fx.GraphModule):
            enter_blocks(module.graph)
            write_data(module.graph)
            if sum(_rewritten(module.graph, node) for node in list(module.graph.nodes)):
                module.recompile()


def _rewritten(graph: fx.Graph, node: fx.Node) -> bool:
    """Whether a node was another."""
    name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
    if node.target is torch.ops.higher_order.tag_activation_checkpoint:  # nothing is kept for gradients
        _replace(graph, node, "call_module", node.args[0].target, node.args[1:])
    elif name == "_get_data_attr":
        _replace(graph, node, "call_method", "detach", node.args)
    elif node.target is operator.pow and isinstance(node.args[0], int | float):
        # fx writes -1 ** x, which is -(1 ** x)
        _replace(graph, node, "call_function", pow, node.args)
    else:
        return False
    return True


def _assignments() -> list[Callable[..., Any]]:
    """What Dynamo writes for `tensor.data = value`: an operator of its own since torch 2.14."""
    newer = getattr(torch.ops.aten, "shallow_copy_data_", None)
    return [torch.Tensor.set_, *([newer] if newer else [])]


def _is_written(tensor: fx.Node, value: fx.Node) -> bool:
    """Whether `tensor.data = value` is as good as a write: of what is as large, and is no other's memory."""
    old, new = (node.meta["example_value"] for node in (tensor, value))
    inputs = (node.meta["example_value"] for node in tensor.graph.find_nodes(op="placeholder"))
    memories = {one.untyped_storage()._cdata for one in inputs if isinstance(one, torch.Tensor) and one is not old}
    return (old.dtype, old.shape) == (new.dtype, new.shape) and new.untyped_storage()._cdata not in memories


def _replace(
    graph: fx.Graph, node: fx.Node, kind: str, target: str | Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    with graph.inserting_before(node):
        instead = graph.create_node(kind, target, tuple(arguments))
    instead.meta = dict(node.meta)
    node.replace_all_uses_with(instead)
    graph.erase_node(node)
