"""Gradients that are sparse tensors, as those of `nn.Embedding(sparse=True)`: torch makes them of what is computed.

main(w, x, dy):                             main(w, x, dy):                     rest(indices, values):
    values = view(dy, [12, 6])                  values = view(dy, [12, 6])          return sparse(indices, values)
    indices = view(x, [1, 12])        ->        indices = view(x, [1, 12])
    return sparse(indices, values)              return None, indices, values
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx


class Rest:
    """What of a graph makes sparse tensors, or is computed of these.

    Parameters
    ----------
    body : torch.fx.GraphModule
        The graph. Results that are computed here are None in it from now on; what is read here follows its results.

    Attributes
    ----------
    positions : list of int
        Where the results of the graph are that are computed here.
    """

    def __init__(self, body: fx.GraphModule) -> None:
        output = body.graph.output_node()
        results: Any = output.args[0]
        nodes: dict[fx.Node, None] = {}
        for node in body.graph.nodes:
            if node is not output and (_is_sparse(node) or any(source in nodes for source in node.all_input_nodes)):
                nodes[node] = None
        self.count = len(results)
        self.positions = [i for i, result in enumerate(results) if result in nodes]
        if not nodes:
            return
        read = dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in nodes)
        graph = fx.Graph()
        copies = {source: graph.placeholder(source.name) for source in read}
        for node in nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[results[i]] for i in self.positions))
        self._body = fx.GraphModule(body, graph)
        output.args = ((*(None if result in nodes else result for result in results), *read),)
        for node in reversed(nodes):
            body.graph.erase_node(node)
        body.recompile()

    def results(self, computed: Sequence[Any]) -> tuple[Any, ...]:
        """The results of the graph as it was, of those that it has now."""
        results = list(computed[: self.count])
        for position, result in zip(self.positions, self._body(*computed[self.count :]), strict=True):
            results[position] = result
        return tuple(results)


def _is_sparse(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.layout == torch.sparse_coo
