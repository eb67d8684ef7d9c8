"""What makes tensors of sizes alone makes them where the inputs are: torch would on the CPU."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

_MAKERS = frozenset((torch.arange, torch.empty, torch.full, torch.hamming_window, torch.ones, torch.zeros))


def place_with(candidates: Iterable[fx.Node], graph: fx.Graph) -> None:
    """Make tensors on the device of the first of these, all of which are tensors.

    Before::                          After::

        n = x.size(0)                     here = x.device
        y = torch.arange(0, n)            n = x.size(0)
                                          y = torch.arange(0, n, device=here)
    """
    makers = [node for node in graph.nodes if node.op == "call_function" and node.target in _MAKERS]
    there = next(iter(candidates), None)
    if not makers or there is None:
        return
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        if there.op == "get_attr":
            there = graph.get_attr(str(there.target))
        here = graph.call_function(getattr, (there, "device"), name="here")
    for node in makers:
        node.kwargs = {**node.kwargs, "device": here}
