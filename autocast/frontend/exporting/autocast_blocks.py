"""Blocks of `torch.autocast(enabled=False)` in a module: regions whose operators run in the dtypes that the code says.

torch.export makes a graph of its own of each block, and keeps nothing of where it was when it decomposes a program.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.amp import autocast_mode
from torch.export import ExportedProgram

from autocast.frontend.nodes import graph_of, in_region


def write_out_blocks(program: ExportedProgram) -> None:
    """Write blocks in which autocast is off in place, as regions that are left alone.

    What a block turns on again in one is autocast by torch, and by a policy: a region that is guarded. Blocks within
    those that torch autocasts are a part of what it does there.

    Before::                                                After::

        y = wrap_with_autocast("cpu", None, False, ..., g, x)   y = sin(x)  # in the region "leave", unless it is in one
        g: z = sin(x); return (z,)
    """
    blocks = [node for node in program.graph.nodes if _is_block(node) and not node.args[2]]
    with program.graph_module._set_replace_hook(program.graph_signature.get_replace_hook()):
        for block in blocks:
            _write_out(block)
    if blocks:
        program.graph_module.recompile()


def enter_blocks(graph: fx.Graph) -> None:
    """Have a graph of Dynamo's enter its blocks: its own functions are nodes to whoever traces, and change nothing."""
    entering = {autocast_mode._enter_autocast: _enter, autocast_mode._exit_autocast: _exit}
    blocks = [node for node in graph.nodes if node.op == "call_function" and node.target in entering]
    for node in blocks:
        node.target = entering[node.target]
    if blocks:
        graph.owning_module.recompile()


def _enter(*options: Any) -> torch.autocast:
    block = torch.autocast(*options)
    block.__enter__()
    return block


def _exit(block: torch.autocast) -> None:
    block.__exit__(None, None, None)


def _is_block(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "wrap_with_autocast"


def _write_out(block: fx.Node) -> None:
    graph, part = block.graph, block.args[4]
    inner = graph_of(part)
    given = iter(block.args[5:])
    values: dict[fx.Node, Any] = {}
    results: Any = ()
    nested = []
    with graph.inserting_before(block):
        for node in inner.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "output":
                results = fx.map_arg(node.args[0], values.__getitem__)
            elif node.op == "get_attr":
                values[node] = _moved(node, graph)
            else:
                values[node] = graph.node_copy(node, values.__getitem__)
                in_region(values[node], "guard" if _is_block(node) and node.args[2] else "leave")
                nested += [values[node]] if _is_block(node) and not node.args[2] else []
    for user in list(block.users):  # each takes one result
        user.replace_all_uses_with(results[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(block)
    if not part.users:
        graph.erase_node(part)
    for one in nested:
        _write_out(one)


def _moved(node: fx.Node, graph: fx.Graph) -> fx.Node:
    """What a graph in `graph` reads of its module, as what that one reads of its own."""
    module, name = graph.owning_module, f"{node.name}_of_block"
    while hasattr(module, name):
        name += "_"
    setattr(module, name, operator.attrgetter(str(node.target))(node.graph.owning_module))
    moved = graph.get_attr(name)
    moved.meta.update(node.meta)
    return moved
