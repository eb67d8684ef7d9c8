"""What depends on parameters alone, computed once."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx


def fold(root: torch.nn.Module, graph: fx.Graph) -> None:
    """Replace what is computed of parameters and constants alone by buffers that hold it: casts of weights, say.

    Parameters that change later have no effect on these: not for modules whose calls replace some.

    Parameters
    ----------
    root : torch.nn.Module
        Holds what the graph reads; a GraphModule whose graph it is must be compiled again.
    graph : torch.fx.Graph
    """
    known: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "get_attr":
                known[node] = operator.attrgetter(node.target)(root)
            elif (
                node.op in ("call_function", "call_method")
                and all(arg in known for arg in node.all_input_nodes)
                and all(user.op != "output" for user in node.users)  # a call returns what nobody else has
            ):
                args, kwargs = (fx.map_arg(part, known.__getitem__) for part in (node.args, node.kwargs))
                call = node.target if node.op == "call_function" else getattr(args[0], node.target)
                known[node] = call(*(args if node.op == "call_function" else args[1:]), **kwargs)
    for node, value in known.items():
        read = any(user not in known for user in node.users)
        if node.op != "get_attr" and read and isinstance(value, torch.Tensor):
            name = f"folded_{node.name}"
            root.register_buffer(name, value, persistent=False)
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.create_node("get_attr", name), lambda user: user not in known)
    graph.eliminate_dead_code(has_effect)


def has_effect(node: fx.Node) -> bool:
    """Whether a node changes something that a caller sees."""
    return node.is_impure() or node.target == "copy_" or "out" in node.kwargs


def drop_unused(module: fx.GraphModule) -> None:
    """Forget the parameters and buffers that the graph does not read."""
    read = {node.target for node in module.graph.find_nodes(op="get_attr")}
    for name, _ in [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]:
        if name not in read:
            path, _, last = name.rpartition(".")
            delattr(module.get_submodule(path), last)
