"""What an import asks of torch."""

from __future__ import annotations

import pytest
import torch
from torch._export import utils
from torch.export import exported_program
from tvm_ffi import structural_equal

from autocast.frontend import from_torch
from autocast.frontend.splitting import decompose


def test_torch_asks_its_dispatcher_once_for_each_run_and_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    before, asked = decompose._ask, []
    assert before is not None and utils._materialize_cpp_cia_ops is before
    monkeypatch.setattr(utils, "_materialize_cpp_cia_ops", before)  # restored, whatever is left there
    monkeypatch.setattr(decompose, "_ask", lambda: asked.append(before()))
    from_torch(torch.nn.Linear(4, 2).eval(), (torch.zeros(1, 4),))
    assert len(asked) == 2, "when the table is made, and when it is used"
    assert utils._materialize_cpp_cia_ops is decompose._ask


def test_torch_writes_no_functions_for_operators_that_its_dispatcher_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own way takes a third of a small model's import, and makes the same program."""
    written: list[int] = []
    override = exported_program._override_composite_implicit_decomp
    monkeypatch.setattr(
        exported_program,
        "_override_composite_implicit_decomp",
        lambda table: written.append(len(table)) or override(table),
    )
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU6(), torch.nn.Flatten()).eval()
    x = (torch.ones(1, 3, 5, 5),)
    ours = from_torch(net, x)
    few, before = max(written), exported_program._collect_all_valid_cia_ops
    assert before is decompose._composites
    monkeypatch.setattr(decompose, "_composites", None)
    by_torch = from_torch(net, x)
    assert few < 100 < max(written)
    assert structural_equal(ours.mod, by_torch.mod)
