"""Text of reports: the same in a terminal, a pipe, a log and a notebook, whatever a policy's names look like."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch
from rich.table import Table
from torch import nn

import autocast
from autocast import amp
from autocast.amp import Policy
from autocast.terminal import output, to_text


class ZMQInteractiveShell:
    """What IPython's `get_ipython` returns in a notebook, as far as rich looks."""


def _table() -> Table:
    table = Table()
    table.add_column("what")
    table.add_row("/[a-z]+[/.]weight/")
    return table


@pytest.mark.parametrize("where", ["notebook", "coloured log"])
def test_text_is_plain_everywhere(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = to_text(_table())
    if where == "notebook":
        monkeypatch.setattr(builtins, "get_ipython", lambda: ZMQInteractiveShell(), raising=False)
    else:
        monkeypatch.setenv("FORCE_COLOR", "1")
    assert to_text(_table()) == plain and "\x1b" not in plain and "/[a-z]+[/.]weight/" in plain


def test_what_is_printed_is_what_cells_say(capsys: pytest.CaptureFixture[str]) -> None:
    output().print(_table())
    assert "/[a-z]+[/.]weight/" in capsys.readouterr().out


@pytest.mark.parametrize("pattern", ["/0[.]weight/", "/0[/.]weight/"])
def test_a_report_shows_the_patterns_of_a_policy(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = autocast.from_torch(nn.Sequential(nn.Linear(8, 8)), (torch.randn(2, 8),))
    mixed = amp.autocast(model, policy=Policy(float32_names=(pattern,)))
    plain = str(mixed.report)
    assert pattern in plain
    monkeypatch.setattr(builtins, "get_ipython", lambda: ZMQInteractiveShell(), raising=False)
    assert str(mixed.report) == plain
