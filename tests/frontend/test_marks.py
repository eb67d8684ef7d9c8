"""Marks of nodes, as torch 2.9 is given them: by what other versions have themselves."""

from __future__ import annotations

import torch
from torch.fx import traceback

from autocast.frontend import marks
from tests.frontend.helpers import Calls


def test_nodes_are_marked_where_torch_has_no_annotations() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        with marks._annotate({"a": 1}), traceback.preserve_node_meta():
            y = x.sin()
            with marks._annotate({"b": 2}), traceback.preserve_node_meta():
                y = y.cos()
            y = y.tanh()
        return y.exp()

    program = torch.export.export(Calls(forward), (torch.randn(3),))
    customs = [node.meta.get("custom") or {} for node in program.graph.nodes if node.op == "call_function"]
    found = [{key: custom[key] for key in ("a", "b") if key in custom} for custom in customs]  # torch has marks, too
    assert found == [{"a": 1}, {"a": 1, "b": 2}, {"a": 1}, {}]
