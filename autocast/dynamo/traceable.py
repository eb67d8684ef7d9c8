"""What Dynamo alone writes into its graphs, as what torch.export traces."""

from __future__ import annotations

import torch
from torch import fx

from autocast.frontend.autocast_blocks import enter_blocks


def make_traceable(body: fx.GraphModule) -> None:
    """Rewrite a graph that infers, and those of its parts.

    Before::                                             After::

        y = tag_activation_checkpoint(part, x)               y = part(x)
        d = torch._C._autograd._get_data_attr(w)             d = w.detach()
        s = torch.Tensor.set_(w, v)                          s = w.copy_(v)
    """
    for module in body.modules():
        if isinstance(module, fx.GraphModule):
            enter_blocks(module.graph)
            if sum(_rewritten(module.graph, node) for node in list(module.graph.nodes)):
                module.recompile()


def _rewritten(graph: fx.Graph, node: fx.Node) -> bool:
    """Whether a node was another."""
    name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
    if node.target is torch.ops.higher_order.tag_activation_checkpoint:  # nothing is kept for gradients
        _replace(graph, node, "call_module", node.args[0].target, node.args[1:])
    elif name == "_get_data_attr":
        _replace(graph, node, "call_method", "detach", node.args)
    elif node.target is torch.Tensor.set_ and len(node.args) == 2 and _is_written(*node.args):
        _replace(graph, node, "call_method", "copy_", node.args)
    elif name == "_lower_version_count_by_1":
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    else:
        return False
    return True


def _is_written(tensor: fx.Node, value: fx.Node) -> bool:
    """Whether `tensor.data = value` is as good as a write: of what is as large, and is no other's memory."""
    old, new = (node.meta["example_value"] for node in (tensor, value))
    inputs = (node.meta["example_value"] for node in tensor.graph.find_nodes(op="placeholder"))
    memories = {one.untyped_storage()._cdata for one in inputs if isinstance(one, torch.Tensor) and one is not old}
    return (old.dtype, old.shape) == (new.dtype, new.shape) and new.untyped_storage()._cdata not in memories


def _replace(graph: fx.Graph, node: fx.Node, kind: str, target: str, arguments: tuple[fx.Node, ...]) -> None:
    with graph.inserting_before(node):
        instead = graph.create_node(kind, target, tuple(arguments))
    instead.meta = dict(node.meta)
    node.replace_all_uses_with(instead)
    graph.erase_node(node)
