"""How matrices lie whose factors a backward graph reads."""

from __future__ import annotations

import torch
from torch import fx

from autocast.frontend.importing.fallback import BY_LAYOUT

aten = torch.ops.aten


def keep_layouts(graph: fx.Graph) -> None:
    """Lay out matrices that are factored as they lay where torch made the graph, whose other tensors become dense.

    Before::                                             After::

        factors = aten._linalg_slogdet(w)                    columns = aten.clone(w.mT, contiguous_format)
                                                             factors = aten._linalg_slogdet(columns.mT)

    Of a matrix that lies row by row torch returns the factors of the transposed one. The backward graph solves by them,
    and was made for one or the other.
    """
    for operator in BY_LAYOUT:
        for node in graph.find_nodes(op="call_function", target=operator):
            matrix = node.args[0]
            by_rows = matrix.meta["val"].is_contiguous()
            with graph.inserting_before(node):
                turned = matrix if by_rows else graph.call_function(aten.transpose.int, (matrix, -1, -2))
                kept = graph.call_function(aten.clone.default, (turned,), {"memory_format": torch.contiguous_format})
                node.update_arg(0, kept if by_rows else graph.call_function(aten.transpose.int, (kept, -1, -2)))
