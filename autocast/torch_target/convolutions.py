"""Convolutions as torch's library for CPUs likes them, where nothing compiles the graph that they are in."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from autocast.torch_target.folding import has_effect


def use_library_forms(root: torch.nn.Module, graph: fx.Graph, constant: bool) -> None:
    """Rewrite a graph that torch will run on a CPU, operator by operator.

    Before::                                     After::

        y = torch.conv2d(x, w, None, 2, 1)           l = x.contiguous(memory_format=torch.channels_last)
        f = y.to(torch.float32)                      y = mkldnn._convolution_pointwise(l, packed_w, None, 1, 2, ...)
        n = F.batch_norm(f, mean, var)               b = F.batch_norm(y, mean, var)
        b = n.to(torch.bfloat16)

    Channels that come last in memory stay there in what follows; the gradients of a group norm, which are many
    operators, would take longer so. The library packs a weight in each call that is not packed. A norm widens what it
    reads, and rounds what it returns, itself.

    Parameters
    ----------
    root : torch.nn.Module
        Holds what the graph reads.
    graph : torch.fx.Graph
    constant : bool
        Whether weights stay as they are.
    """
    if not constant and _calls(graph, F.group_norm):
        return
    for node in _calls(graph, torch.ops.aten.convolution_backward) + _calls(graph, torch.conv_transpose2d):
        if node.target is torch.conv_transpose2d or len(node.args[4]) == 2:  # strides, one for each axis
            _move_channels(graph, node)
    for node in _calls(graph, torch.conv2d):
        x, read = node.args[:2]
        _move_channels(graph, node)
        if constant and isinstance(read, fx.Node) and read.op == "get_attr":
            weight = operator.attrgetter(read.target)(root)
            if weight.dtype == torch.bfloat16:
                _drop_casts_of_norm(node)
            if torch.backends.mkldnn.is_available():
                _pack(root, graph, node, weight, x.meta.get("shape"))
    graph.eliminate_dead_code(has_effect)


def _calls(graph: fx.Graph, target: Any) -> list[fx.Node]:
    return list(graph.find_nodes(op="call_function", target=target))


def _move_channels(graph: fx.Graph, node: fx.Node) -> None:
    """Have the channels of the first argument come last in memory."""
    with graph.inserting_before(node):
        moved = graph.call_method("contiguous", node.args[:1], {"memory_format": torch.channels_last})
    node.args = (moved, *node.args[1:])


def _pack(
    root: torch.nn.Module, graph: fx.Graph, node: fx.Node, weight: torch.Tensor, shape: tuple[int, ...] | None
) -> None:
    x, _, bias, stride, padding, dilation, groups = node.args
    if weight.dtype not in (torch.float32, torch.bfloat16) or shape is None or 0 in (*shape, *weight.shape):
        return
    name, sizes = f"packed_{node.name}", (padding, stride, dilation, groups)
    packed = torch.ops.aten.mkldnn_reorder_conv2d_weight(weight.detach().to_mkldnn(), *sizes, shape)
    setattr(root, name, packed)
    with graph.inserting_before(node):
        operands: tuple[Any, ...] = (x, graph.create_node("get_attr", name), bias, *sizes, "none", [], "")
        result = graph.call_function(torch.ops.mkldnn._convolution_pointwise.default, operands)
    node.replace_all_uses_with(result)


def _drop_casts_of_norm(convolution: fx.Node) -> None:
    """Let a norm read and write 16 bits, if they are widened for it, and rounded after it, alone."""
    path = [convolution]
    for is_next in (_widens, lambda node: node.target is F.batch_norm, _rounds):
        users = list(path[-1].users)
        if len(users) != 1 or not is_next(users[0]):
            return
        path += users
    _, widened, norm, rounded = path
    norm.replace_input_with(widened, convolution)
    rounded.replace_all_uses_with(norm)


def _widens(node: fx.Node) -> bool:
    return node.op == "call_method" and node.target == "to" and node.args[1:] == (torch.float32,)


def _rounds(node: fx.Node) -> bool:
    return node.op == "call_method" and node.target == "to" and node.args[1:] == (torch.bfloat16,)
