"""What torch's kernels for CPUs, called one by one, compute many times slower than others that answer the same.

A `var` or a `where` of four images at ResNet's first layers takes them 7 ms on two cores of a Zen 5, one number at a
time; these forms take 0.5. The product of an LSTM's input, whose axes are in another order, takes them 5 ms, and 0.2 of
dense rows. A compiler such as Inductor makes loops of its own of either.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from autocast.torch_target.folding import has_effect
from autocast.torch_target.linear import is_method


def use_fast_forms(root: torch.nn.Module, graph: fx.Graph) -> None:
    """Rewrite a graph that torch will run on a CPU, operator by operator.

    Before::                                          After::

        v = torch.var(x, [0, 2, 3], correction=0)     m = torch.mean(x, [0, 2, 3], True)
                                                      c = x - m
                                                      v = torch.mean(c * c, [0, 2, 3], False)

        n = torch.le(x, 0)                            y = aten.threshold_backward(g, x, 0)
        y = torch.where(n, 0, g)

        t = x.permute((1, 0, 2))                      d = t.contiguous()
        y = F.linear(t, weight)                       y = F.linear(d, weight)

    Parameters
    ----------
    root : torch.nn.Module
        Holds what the graph reads.
    graph : torch.fx.Graph
    """
    for variance in list(graph.find_nodes(op="call_function", target=torch.var)):
        _as_mean_of_squares(graph, variance)
    for choice in list(graph.find_nodes(op="call_function", target=torch.where)):
        _as_threshold(root, graph, choice)
    for product in list(graph.find_nodes(op="call_function", target=F.linear)):
        _of_dense(graph, product)
    graph.eliminate_dead_code(has_effect)


def _as_mean_of_squares(graph: fx.Graph, variance: fx.Node) -> None:
    x, axes = variance.args
    if variance.kwargs.get("correction") != 0:
        return
    with graph.inserting_before(variance):
        mean = graph.call_function(torch.mean, (x, axes, True))
        offset = graph.call_function(torch.sub, (x, mean))
        squares = graph.call_function(torch.mul, (offset, offset))
        result = graph.call_function(torch.mean, (squares, axes, bool(variance.kwargs.get("keepdim"))))
    variance.replace_all_uses_with(result)


def _as_threshold(root: torch.nn.Module, graph: fx.Graph, choice: fx.Node) -> None:
    condition, zero, gradient = choice.args
    if not (_is_zero(root, zero) and isinstance(condition, fx.Node) and condition.target is torch.le):
        return
    x, bound = condition.args
    if _is_zero(root, bound) and kind_of(x) is not None and kind_of(x) == kind_of(gradient):
        with graph.inserting_before(choice):
            result = graph.call_function(torch.ops.aten.threshold_backward, (gradient, x, 0))
        choice.replace_all_uses_with(result)


def _of_dense(graph: fx.Graph, product: fx.Node) -> None:
    """Multiply all rows at once: torch repeats the weight for each matrix of a view whose axes are in another order."""
    x = source = product.args[0]
    while is_method(source, "to"):
        source = source.args[0]
    if is_method(source, "permute", "expand") or source.target is operator.getitem:
        with graph.inserting_before(product):
            dense = graph.call_method("contiguous", (x,))
        product.replace_input_with(x, dense)


def _is_zero(root: torch.nn.Module, value: Any) -> bool:
    """Whether a value is a constant of one number, which is 0."""
    if not isinstance(value, fx.Node) or value.target not in root._non_persistent_buffers_set:
        return False
    constant = root.get_buffer(value.target)
    return constant.ndim == 0 and not constant


def kind_of(value: Any) -> tuple[tuple[int, ...], str] | None:
    """The shape and dtype of a tensor, where they are known."""
    meta = value.meta if isinstance(value, fx.Node) else {}
    return (meta["shape"], meta["dtype"]) if meta.get("shape") is not None else None
