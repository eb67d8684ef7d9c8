"""Batch normalization by the kernels that torch has for a device, which read the data once."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from tvm import relax

from autocast.ir import static_shape

aten: Any = torch.ops.aten


def is_over_batch(call: relax.Call) -> bool:
    """Whether torch's kernels normalize a call's first operand: channels are its second axis, and it is never empty."""
    shape = static_shape(call.args[0])
    return shape is not None and len(shape) > 1 and int(call.attrs.axis) % len(shape) == 1 and 0 not in shape


def over_batch(x: Any, gamma: Any, beta: Any, epsilon: float) -> tuple[Any, Any, Any]:
    """Nodes of a graph for normalized data, and mean and reciprocal deviation of each channel."""
    results = aten._native_batch_norm_legit.no_stats(x, gamma, beta, True, 0.0, epsilon)
    return results[0], results[1], results[2]


def share_statistics(graph: fx.Graph) -> None:
    """Compute statistics once where the adjoints of what is normalized are wanted, too.

    Before::                                              After::

        y, mean, r = over_batch(x, gamma, beta, 1e-5)         y, mean, r = over_batch(x, gamma, beta, 1e-5)
        _, again, too = over_batch(x, None, None, 1e-5)       adjoints = native_batch_norm_backward(g, x, ..., mean, r)
        adjoints = native_batch_norm_backward(g, x, ..., again, too)
    """
    first: dict[tuple[Any, Any], fx.Node] = {}
    for node in graph.find_nodes(op="call_function", target=aten._native_batch_norm_legit.no_stats):
        x, gamma, beta, *_, epsilon = node.args
        found = first.setdefault((x, epsilon), node)
        if found is not node and gamma is None and beta is None:
            node.replace_all_uses_with(found)
