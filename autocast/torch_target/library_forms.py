"""Convolutions and recurrences as torch's library for CPUs likes them, where nothing compiles the graph they are in."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from autocast.frontend.converters.recurrent import LSTM, RUNS, Recurrence
from autocast.torch_target.folding import has_effect
from autocast.torch_target.library_lstm import use_library_lstm


def use_library_forms(root: torch.nn.Module, graph: fx.Graph, constant: bool) -> None:
    """Rewrite a graph that torch will run on a CPU, operator by operator.

    Before::                                     After::

        y = torch.conv2d(x, w, None, 2, 1)           l = with_channels_last(x)
        f = y.to(torch.float32)                      y = PackedConvolution()(l, w, None, 2, 1)
        n = F.batch_norm(f, mean, var)               b = F.batch_norm(y, mean, var)
        b = n.to(torch.bfloat16)

    Channels that come last in memory stay there in what follows; the gradients of a group norm, which are many
    operators, would take longer so. A norm widens what it reads, and rounds what it returns, itself. Weights that stay
    are packed once, those of recurrences, too.

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
    for node in _calls(graph, torch.ops.aten.convolution_backward):
        _lay_as_weights(graph, node)
    for node in _calls(graph, torch.ops.aten.convolution_backward) + _calls(graph, torch.conv_transpose2d):
        if node.target is torch.conv_transpose2d or len(node.args[4]) == 2:  # strides, one for each axis
            _move_channels(graph, node)
    for node in _calls(graph, F.interpolate):
        if len(node.kwargs.get("size") or ()) == 2 and not node.kwargs.get("antialias"):
            _move_channels(graph, node)
    for node in _calls(graph, torch.conv2d):
        read = node.args[1]
        _move_channels(graph, node)
        if constant and isinstance(read, fx.Node) and read.op == "get_attr":
            weight = operator.attrgetter(read.target)(root)
            if weight.dtype == torch.bfloat16:
                _drop_casts_of_norm(node)
            if _can_be_packed(weight.dtype):
                node.target = PackedConvolution()
    for kind, run in RUNS.items() if constant else ():
        for node in _calls(graph, kind):
            if node.args[1].op != "get_attr":
                continue
            weight = operator.attrgetter(node.args[1].target)(root)
            if kind is not LSTM or not _can_be_packed(weight.dtype) or not use_library_lstm(root, node):
                node.target = Recurrence(run)
    graph.eliminate_dead_code(has_effect)


def _can_be_packed(dtype: torch.dtype) -> bool:
    """Whether the library takes weights of a dtype on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _lay_as_weights(graph: fx.Graph, node: fx.Node) -> None:
    """Have the gradient of a weight, which comes with channels last, lie in memory as what an optimizer adds it to."""
    for gradient in [user for user in node.users if user.target is operator.getitem and user.args[1] == 1]:
        with graph.inserting_after(gradient):
            dense = graph.call_method("contiguous", (gradient,))
        gradient.replace_all_uses_with(dense, lambda user, dense=dense: user is not dense)


def with_channels_last(x: torch.Tensor) -> torch.Tensor:
    """The same images, whose channels come last in memory.

    The stride from an image to the next says so even if there is one image: torch goes by it, where a view has another.
    """
    images = x.contiguous(memory_format=torch.channels_last)
    if len(x) != 1:
        return images
    _, channels, height, width = x.shape
    return images.as_strided(x.shape, (channels * height * width, 1, width * channels, channels))


class PackedConvolution:
    """`torch.conv2d` with a weight that stays, which the library packs in each call of torch's.

    Here it is packed once, in the second call: that takes as long as a call, and somebody waits for the first.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._packed: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: None, *options: Any) -> torch.Tensor:
        self._calls += 1
        if self._calls == 1 or not x.numel() or not weight.numel():
            return torch.conv2d(x, weight, bias, *options)
        stride, padding, dilation, groups = options
        sizes = (padding, stride, dilation, groups)
        if self._packed is None:
            self._packed = torch.ops.aten.mkldnn_reorder_conv2d_weight(weight.detach().to_mkldnn(), *sizes, x.shape)
        convolution = torch.ops.mkldnn._convolution_pointwise.default
        result: torch.Tensor = convolution(x, self._packed, bias, *sizes, "none", [], "")
        return result


def _calls(graph: fx.Graph, target: Any) -> list[fx.Node]:
    return list(graph.find_nodes(op="call_function", target=target))


def _move_channels(graph: fx.Graph, node: fx.Node) -> None:
    """Have the channels of the first argument come last in memory."""
    with graph.inserting_before(node):
        moved = graph.call_function(with_channels_last, node.args[:1])
    node.args = (moved, *node.args[1:])


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
