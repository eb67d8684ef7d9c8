"""What an import asks of torch."""

from __future__ import annotations

import pytest
import torch
from torch._export import utils

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
