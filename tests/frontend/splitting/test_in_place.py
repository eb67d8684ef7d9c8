"""Writes into what a program makes itself: results where nobody sees the difference; elsewhere torch traces again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import ExportedProgram

from autocast import vm
from autocast.frontend import from_torch


def _written_twice(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    z = y.add_(1)
    y.mul_(x)
    return y + z


def _read_before(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    total = y.view(-1).sum()
    return y.add_(1) * total


def _through_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y[:, 0].mul_(2)
    return y


def _read_through_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    view = y.view(-1)
    y.add_(1)
    return view


def _rounded(x: torch.Tensor) -> torch.Tensor:
    y = x.to(torch.float16)
    y.mul_(x)
    return y.float()


def _idle_dropout(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    F.dropout(y, training=False).add_(1)
    return y * F.dropout(x, 0.0, training=True)


#: Functions that write, and how often torch traces their programs again.
_FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "an activation": (lambda x: F.relu(x * 2, inplace=True) + 1, 0),
    "written twice": (_written_twice, 0),
    "a view is read before": (_read_before, 0),
    "a view is made afterwards": (lambda x: x.sin().add_(1).view(-1) * 2, 0),
    "through a view": (_through_a_view, 1),
    "read through a view": (_read_through_a_view, 1),
    "rounded as it is written": (_rounded, 1),
    "an input": (lambda x: x.add_(1) * 2, 1),
    "a part of an input": (lambda x: x[0].add_(1) * x[1], 1),
    "axes": (lambda x: x.sin().t_() * 2, 1),
    "what no dropout copies": (_idle_dropout, 0),
    "from an input that no dropout copies": (lambda x: F.dropout(x, training=False), 0),
}


class _Of(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ExportedProgram]]:
    """The programs that torch traces again."""
    programs, run = [], ExportedProgram.run_decompositions
    monkeypatch.setattr(
        ExportedProgram, "run_decompositions", lambda program, *args: programs.append(program) or run(program, *args)
    )
    yield programs


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_what_is_written_is_read(traced: list[ExportedProgram], name: str) -> None:
    function, times = _FUNCTIONS[name]
    x = torch.randn(3, 4)
    model = from_torch(_Of(function), (x.clone(),))
    assert len(traced) == times
    got = vm.compile(model, "torch:cpu", mode="eager")(x.clone())
    torch.testing.assert_close(got, function(x.clone()))


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Each row is written, the last one through a view, and read by the one before."""
    y = x.sin()
    for row in y.unbind():
        row.add_(1)
    y.unbind()[-1][1:].mul_(y.unbind()[0][1:])
    return y


def test_rows_of_any_length_are_written() -> None:
    executable = vm.compile(from_torch(_Of(_rows), (torch.randn(3, 5),), dynamic={"n": ("x", 1)}))
    for length in (5, 1, 8):
        x = torch.randn(3, length)
        torch.testing.assert_close(executable(x), _rows(x))
