"""Products as torch has kernels for them: `linear`, with a transposed weight and what is added, rounds once."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

_TRANSPOSED = ([1, 0], (1, 0))


def transpose_operands(graph: fx.Graph) -> None:
    """Have products answer as what reads them wants: the gradient of a weight as the weight lies in memory.

    Before::                                  After::

        xt = x.permute((1, 0))                gt = g.permute((1, 0))
        p = torch.matmul(xt, g)               y = torch.matmul(gt, x)
        y = p.permute((1, 0))
    """
    for turned in list(graph.find_nodes(op="call_method", target="permute")):
        product = cast = turned.args[0]
        if cast.op == "call_method" and cast.target == "to":
            product = cast.args[0]
        is_read_once = len(cast.users) == len(product.users) == 1
        if not is_transposed(turned) or product.target is not torch.matmul or not is_read_once:
            continue
        with graph.inserting_before(turned):
            left, right = (_transposed(graph, operand) for operand in reversed(product.args))
            result = graph.call_function(torch.matmul, (left, right))
            if cast is not product:
                result = graph.call_method("to", (result, *cast.args[1:]), cast.kwargs)
        result.meta.update(turned.meta)
        name = turned.name
        turned.replace_all_uses_with(result)
        for node in dict.fromkeys((turned, cast, product)):
            graph.erase_node(node)
        result._rename(name)


def _transposed(graph: fx.Graph, matrix: fx.Node) -> fx.Node:
    if is_transposed(matrix):
        of: fx.Node = matrix.args[0]
        return of
    return graph.call_method("permute", (matrix, (1, 0)))


def use_linear(graph: fx.Graph) -> None:
    """Rewrite `matmul(x, weight.permute(1, 0)) + bias`.

    Before::                                  After::

        t = weight.permute((1, 0))            y = linear(x, weight, bias)
        p = torch.matmul(x, t)
        y = p + bias

    The transpose may have been widened, where a product of 16 bits is wanted in float32. Those of integers stay: a file
    of them would have a `Gemm`, and onnxruntime has that for floating point alone.
    """
    for product in list(graph.find_nodes(op="call_function", target=torch.matmul)):
        x, transposed = product.args
        is_whole = "int" in product.meta.get("dtype", "")
        weight = None if is_whole else _untransposed(graph, transposed)
        if weight is None:
            continue
        last, bias = product, None
        if len(product.users) == 1:
            (reader,) = product.users
            bias = _other(reader, product)
            last = reader if bias is not None else product
        with graph.inserting_before(last):
            linear = graph.call_function(F.linear, (x, weight, bias))
        linear.meta.update(last.meta)
        name = last.name
        last.replace_all_uses_with(linear)
        graph.erase_node(last)
        if bias is not None:
            graph.erase_node(product)
        linear._rename(name)


def _untransposed(graph: fx.Graph, matrix: fx.Node) -> fx.Node | None:
    """What a matrix is the transpose of, widened if that is; None where it is no transpose."""
    turned = matrix.args[0] if is_method(matrix, "to") else matrix
    if not is_transposed(turned):
        return None
    weight: fx.Node = turned.args[0]
    if turned is not matrix:
        meta = weight.meta
        with graph.inserting_before(matrix):
            weight = graph.call_method("to", (weight, *matrix.args[1:]), matrix.kwargs)
        weight.meta.update(meta)
    return weight


def is_transposed(node: Any) -> bool:
    """Whether it is the transpose of a matrix."""
    return isinstance(node, fx.Node) and is_method(node, "permute") and node.args[1] in _TRANSPOSED


def is_method(node: fx.Node, *names: str) -> bool:
    """Whether it is a call of one of these methods of a tensor: an input may have such a name, too."""
    return node.op == "call_method" and node.target in names


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
