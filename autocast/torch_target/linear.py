"""Products with a transposed weight, and what is added to them, as torch's `linear`: one kernel, which rounds once."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

_TRANSPOSED = ([1, 0], (1, 0))


def use_linear(graph: fx.Graph) -> None:
    """Rewrite `matmul(x, weight.permute(1, 0)) + bias`.

    Before::                                  After::

        t = weight.permute((1, 0))            y = linear(x, weight, bias)
        p = torch.matmul(x, t)
        y = p + bias
    """
    for product in list(graph.find_nodes(op="call_function", target=torch.matmul)):
        x, transposed = product.args
        if not _is_transposed(transposed):
            continue
        last, bias = product, None
        if len(product.users) == 1:
            (reader,) = product.users
            bias = _other(reader, product)
            last = reader if bias is not None else product
        with graph.inserting_before(last):
            linear = graph.call_function(F.linear, (x, transposed.args[0], bias))
        linear.meta.update(last.meta)
        name = last.name
        last.replace_all_uses_with(linear)
        graph.erase_node(last)
        if bias is not None:
            graph.erase_node(product)
        linear._rename(name)


def _is_transposed(node: Any) -> bool:
    """Whether it is the transpose of a matrix."""
    return isinstance(node, fx.Node) and node.target == "permute" and node.args[1] in _TRANSPOSED


def _other(reader: fx.Node, product: fx.Node) -> Any:
    """The vector that is added to a product, None where something else is done with it."""
    if reader.target is not operator.add:
        return None
    bias = next((arg for arg in reader.args if arg is not product), None)
    fits = isinstance(bias, fx.Node) and bool(_width(bias)) and bias.meta["shape"] == _width(product)
    return bias if fits else None


def _width(node: fx.Node) -> Any:
    """The size of the last dimension, in a tuple, where all sizes are known."""
    shape = node.meta.get("shape")
    return shape[-1:] if shape else None
