"""Attention and its adjoints by the kernels that torch has for a device, which keep no scores."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import fx

#: From the adjoint of what attention returns to those of queries, keys and values.
Adjoints: TypeAlias = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, scale: float | None
) -> tuple[torch.Tensor, Adjoints]:
    """Attention of (batch, length, heads, width), and what gives its adjoints."""

    def attention(*operands: torch.Tensor) -> torch.Tensor:
        q, k, v = (torch.transpose(x, 1, 2) for x in operands)
        return torch.transpose(F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale), 1, 2)

    result: tuple[torch.Tensor, Adjoints] = torch.func.vjp(attention, query, key, value)
    return result


def adjoints(function: Adjoints, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Those of queries, keys and values."""
    return function(g)


def share_attention(graph: fx.Graph) -> None:
    """Compute attention once where its adjoints are wanted, too.

    Before::                                        After::

        q, k, v = ...                                   y, pull = attended(q, k, v, True, None)
        t = scaled_dot_product_attention(...)           q_grad, k_grad, v_grad = adjoints(pull, g)
        y = t.transpose(1, 2)
        again, pull = attended(q, k, v, True, None)
        q_grad, k_grad, v_grad = adjoints(pull, g)
    """
    again = {node.args: node for node in graph.find_nodes(op="call_function", target=attended)}
    for node in list(graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)):
        operands = tuple(operand.args[0] for operand in node.args if operand.target is torch.transpose)
        later = again.get((*operands, node.kwargs["is_causal"], node.kwargs["scale"]))
        if later is None or node.kwargs["attn_mask"] is not None:
            continue
        with graph.inserting_before(node):
            both = graph.call_function(attended, later.args)
            result = graph.call_function(torch.transpose, (graph.call_function(operator.getitem, (both, 0)), 1, 2))
        result.meta.update(node.meta)
        node.replace_all_uses_with(result)
        later.replace_all_uses_with(both)
        graph.erase_node(node)
        graph.erase_node(later)


def fused_adjoints(query: Any, key: Any, value: Any, g: Any, causal: bool, scale: float | None) -> tuple[Any, ...]:
    """Nodes of a graph for the adjoints of queries, keys and values."""
    tracer = query.tracer
    both = tracer.create_proxy("call_function", attended, (query, key, value, causal, scale), {})
    results = tracer.create_proxy("call_function", adjoints, (both[1], g), {})
    return tuple(results[i] for i in range(3))
