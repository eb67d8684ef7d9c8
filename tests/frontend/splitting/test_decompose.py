"""What an import asks of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._export import utils
from torch.export import ExportedProgram, exported_program
from tvm_ffi import structural_equal

from autocast import vm
from autocast.frontend import from_torch
from autocast.frontend.splitting import decompose, single_calls
from tests.architectures import ARCHITECTURES


class _Adding(nn.Module):
    """Writes into its input, so that torch traces again what it exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


def test_torch_asks_its_dispatcher_once_for_each_run_and_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    before, asked = decompose._ask, []
    assert before is not None and utils._materialize_cpp_cia_ops is before
    monkeypatch.setattr(utils, "_materialize_cpp_cia_ops", before)  # restored, whatever is left there
    monkeypatch.setattr(decompose, "_ask", lambda: asked.append(before()))
    for net, times in ((nn.Linear(4, 2), 1), (nn.Sequential(_Adding(), nn.Linear(4, 2)), 2)):
        from_torch(net.eval(), (torch.zeros(1, 4),))
        assert len(asked) == times, "when the table is made, and when torch traces again"
        asked.clear()
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
    net = nn.Sequential(_Adding(), nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.Flatten()).eval()
    x = (torch.ones(1, 3, 5, 5),)
    ours = from_torch(net, x)
    few, before = max(written), exported_program._collect_all_valid_cia_ops
    assert before is decompose._composites
    monkeypatch.setattr(decompose, "_composites", None)
    by_torch = from_torch(net, x)
    assert few < 100 < max(written)
    assert structural_equal(ours.mod, by_torch.mod)


class _Sampled(nn.Module):
    """What a call is split into reads what another was split into, twice; a result of several is a result."""

    def forward(self, images: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.grid_sample(F.grid_sample(images, places, align_corners=True), places, align_corners=True)
        return y, F.grid_sample(y, places, align_corners=True), *torch.frexp(y), torch.special.entr(y.abs())


@pytest.mark.parametrize("dynamic", [None, {"batch": [("images", 0), ("places", 0)], "height": ("images", 2)}])
def test_calls_are_split_by_themselves_as_in_the_whole_program(monkeypatch: pytest.MonkeyPatch, dynamic: Any) -> None:
    """torch would trace all of the others again, at first and for each operator that is found to need it."""
    traced, run = [], ExportedProgram.run_decompositions
    monkeypatch.setattr(ExportedProgram, "run_decompositions", lambda *args: traced.append(args) or run(*args))
    inputs = torch.randn(2, 3, 5, 4), torch.rand(2, 5, 4, 2) * 2 - 1
    ours = from_torch(_Sampled(), inputs, dynamic=dynamic)
    assert traced == []
    torch.testing.assert_close(ours(*inputs), _Sampled()(*inputs), rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(single_calls, "_sorted_out", None)
    by_torch = from_torch(_Sampled(), inputs, dynamic=dynamic)
    assert len(traced) > 1
    assert structural_equal(ours.mod, by_torch.mod)


class _Same(nn.Module):
    """Calls that are what they are given, constants, a number that a value says, and a name that Python has."""

    def forward(self, input: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = F.dropout(input.contiguous().float(), 0.5, training=False).expand(input.shape)
        y = x.reshape(x.shape[0], 2, -1).transpose(0, 1).flatten(1) + torch.arange(x.shape[0] * 2)
        return x, y * torch.full((), 0.5), rows.to(torch.int64), y * rows[0].item()


_NET = ARCHITECTURES["llama"]()


@pytest.mark.parametrize(
    ("module", "inputs", "dynamic"),
    [
        (_Same(), (torch.randn(3, 4), torch.tensor([2, 1])), None),
        (_Same(), (torch.randn(3, 4), torch.tensor([2, 1])), {"batch": ("input", 0)}),
        (_NET.module.eval(), _NET.args, _NET.dynamic),
    ],
)
def test_what_only_computes_is_split_as_torch_splits_it(
    monkeypatch: pytest.MonkeyPatch, module: nn.Module, inputs: tuple[torch.Tensor, ...], dynamic: Any
) -> None:
    """torch would trace it again: half of an import."""
    traced, run = [], ExportedProgram.run_decompositions
    monkeypatch.setattr(ExportedProgram, "run_decompositions", lambda *args: traced.append(args) or run(*args))
    ours = from_torch(module, inputs, dynamic=dynamic)
    assert traced == []
    monkeypatch.setattr(single_calls, "_sorted_out", None)
    by_torch = from_torch(module, inputs, dynamic=dynamic)
    assert len(traced) == 1
    assert structural_equal(ours.mod, by_torch.mod)


@pytest.mark.filterwarnings("ignore::autocast.errors.TrainingModeWarning")
@pytest.mark.parametrize("norm", [torch.batch_norm, torch.native_batch_norm])
def test_statistics_that_a_norm_updates_are_state(norm: Any) -> None:
    """Schemas of these operators say nothing of what they write."""

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("variance", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            args = x, None, None, self.mean, self.variance, True, 0.1, 1e-5
            return norm(*args, False) if norm is torch.batch_norm else norm(*args)[0]

    module, x = Norm(), torch.randn(4, 3, 5)
    executable = vm.compile(from_torch(module, (x,)))
    torch.testing.assert_close(executable(x), module(x), rtol=1e-4, atol=1e-5)
    for name, value in module.named_buffers():
        torch.testing.assert_close(torch.from_dlpack(executable.state[name]), value)
