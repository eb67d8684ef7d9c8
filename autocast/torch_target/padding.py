"""Products of sizes that GPUs multiply slowly in 16 bits, such as a vocabulary of 50,257: zeros are added."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from autocast.runtime.signature import Input
from autocast.torch_target.asked import torch_dtype
from autocast.torch_target.folding import has_effect
from autocast.torch_target.linear import is_transposed

#: Elements of 16 bits in the 16 bytes that kernels of tensor cores load at once: rows start at multiples of them.
_ALIGNED = 8

#: A product with a smaller size reads and writes too much for each operation: zeros would cost more than they save.
_SMALLEST = 256


def pad_products(module: fx.GraphModule, inputs: Sequence[Input]) -> None:
    """Rewrite products of matrices of 16 bits to have sizes that are multiples of 8.

    Before::                                  After::

        y = linear(x, weight, bias)               w = pad(weight, [0, 0, 0, 7])
                                                  b = pad(bias, [0, 7])
                                                  p = linear(x, w, b)
                                                  y = p.narrow(-1, 0, 50257)

    The numbers are the same. Torch's compiler writes the zeros where it casts a weight, and they are part of what is
    computed once.

    Parameters
    ----------
    module : torch.fx.GraphModule
    inputs : sequence of Input
        What it takes: all sizes are numbers.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        examples = [torch.empty(spec.shape, dtype=torch_dtype(spec.dtype)) for spec in inputs]
    FakeTensorProp(module, mode).propagate_dont_convert_inputs(*examples)
    zeros = _Zeros(module.graph)
    for function in (F.linear, torch.matmul):
        for product in list(module.graph.find_nodes(op="call_function", target=function)):
            _pad(module.graph, product, zeros)
    module.graph.eliminate_dead_code(has_effect)
    module.recompile()


class _Zeros:
    """Tensors with zeros after what they had: one for all products that read it."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._padded: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = {}

    def after(self, tensor: fx.Node, sizes: Sequence[int]) -> fx.Node:
        """A tensor that was given zeros up to these sizes."""
        shape = _shape(tensor)
        if shape == tuple(sizes):
            return tensor
        key = tensor, tuple(sizes)
        if key not in self._padded:
            self._padded[key] = self._made(tensor, shape, sizes)
        return self._padded[key]

    def _made(self, tensor: fx.Node, shape: tuple[int, ...], sizes: Sequence[int]) -> fx.Node:
        source = tensor.args[0] if tensor.args else None
        if is_transposed(tensor):
            base = self.after(source, sizes[::-1])
            with self._graph.inserting_after(max(base, tensor)):
                return self._graph.call_method("permute", (base, (1, 0)))
        if tensor.target == "reshape" and _shape(source)[-1:] == shape[-1:] and shape[:-1] == tuple(sizes[:-1]):
            base = self.after(source, (*_shape(source)[:-1], sizes[-1]))
            with self._graph.inserting_after(max(base, tensor)):
                return self._graph.call_method("reshape", (base, tuple(sizes)))
        widths = [n for had, size in zip(reversed(shape), reversed(sizes), strict=True) for n in (0, size - had)]
        with self._graph.inserting_after(tensor):
            return self._graph.call_function(F.pad, (tensor, widths))


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _pad(graph: fx.Graph, product: fx.Node, zeros: _Zeros) -> None:
    """Pad one product of matrices, if it is worth it."""
    left, right, bias = (*product.args, None)[:3]
    is_linear = product.target is F.linear
    (*rows, depth), columns = _shape(left), _shape(right)
    if len(columns) != 2 or not (is_linear or len(rows) == 1) or left.meta["val"].dtype.itemsize != 2:
        return
    count, width = math.prod(rows), columns[0 if is_linear else 1]
    # The rows of a matrix lie one after the other, and any number of them is as good, unless it is another's transpose.
    new_rows = [_aligned(count)] if is_transposed(left) else rows
    new_width, new_depth = _aligned(width), _aligned(depth)
    if min(count, depth, width) < _SMALLEST or (new_rows, new_width, new_depth) == (rows, width, depth):
        return
    weights = (new_width, new_depth) if is_linear else (new_depth, new_width)
    operands = [zeros.after(left, (*new_rows, new_depth)), zeros.after(right, weights)]
    if bias is not None:
        operands.append(zeros.after(bias, (new_width,)))
    with graph.inserting_before(product):
        result = graph.call_function(product.target, tuple(operands))
        if new_width != width:
            result = graph.call_method("narrow", (result, -1, 0, width))
        if new_rows != rows:
            result = graph.call_method("narrow", (result, 0, 0, count))
    result.meta.update(product.meta)
    product.replace_all_uses_with(result)
    graph.erase_node(product)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
