"""Which operators are asked again for a small size."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autocast.frontend.exporting import small_sizes
from autocast.frontend.exporting.small_sizes import other_program
from tests.frontend.helpers import Calls


def test_operators_that_a_size_has_no_part_in_are_not_asked_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [{0: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC}]
    module = Calls(lambda x, y: (x.sin().squeeze(0), y.cos().exp()))
    program = torch.export.export(module, (torch.ones(3, 2), torch.ones(4, 2)), dynamic_shapes={"args": tuple(shapes)})
    x, y = (str(node.meta["val"].shape[0]) for node in program.graph.find_nodes(op="placeholder"))
    asked: list[str] = []
    other = small_sizes._Given.other

    def noted(given: Any, node: torch.fx.Node) -> str:
        asked.append(node.target.__name__)
        return other(given, node)

    monkeypatch.setattr(small_sizes._Given, "other", noted)
    assert "squeeze" in other_program(program, {x: 1, y: 4}, x)
    assert not other_program(program, {x: 3, y: 1}, y)
    assert asked == ["sin.default", "squeeze.dim", "cos.default", "exp.default"]
