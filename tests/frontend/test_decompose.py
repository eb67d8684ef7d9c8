"""What an import asks of torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._export import utils
from torch.export import export, exported_program

from autocast.frontend import decompose, from_torch


def test_torch_asks_its_dispatcher_once_for_each_run_and_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    before, asked = decompose._ask, []
    assert before is not None and utils._materialize_cpp_cia_ops is before
    monkeypatch.setattr(utils, "_materialize_cpp_cia_ops", before)  # restored, whatever is left there
    monkeypatch.setattr(decompose, "_ask", lambda: asked.append(before()))
    from_torch(torch.nn.Linear(4, 2).eval(), (torch.zeros(1, 4),))
    assert len(asked) == 2, "when the table is made, and when it is used"
    assert utils._materialize_cpp_cia_ops is decompose._ask


def test_torch_overrides_those_operators_alone_that_are_not_split_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what comes of a program is the same as if it overrode all of them."""
    before, overridden = decompose._override, []
    assert before is not None and exported_program._override_composite_implicit_decomp is before

    def override(table: dict) -> object:
        overridden.append(set(table))
        return before(table)

    def graph() -> str:
        module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(2), nn.Linear(4, 5), nn.Dropout(), nn.PReLU()).eval()
        return str(decompose.decompose(export(module, (torch.zeros(2, 3, 4, 4),))).graph)

    monkeypatch.setattr(decompose, "_override", override)
    fewer = graph()
    assert exported_program._override_composite_implicit_decomp is override
    assert all(torch.ops.aten.linear.default in operators and len(operators) < 100 for operators in overridden)
    monkeypatch.setattr(exported_program, "_override_composite_implicit_decomp", before)
    monkeypatch.setattr(decompose, "_override", None)
    assert graph() == fewer and "aten.linear" in fewer and "aten.flatten" not in fewer
