"""No export, trace or simplification moves an operator out of the region that its author wrote it in."""

from __future__ import annotations

import io
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autocast import amp
from autocast.errors import ImportModelError
from autocast.frontend import from_torch
from autocast.ir import op_name, place_of
from tests.frontend.helpers import Calls
from tests.policy.nested import NESTED, Nested, X, regions


@pytest.mark.parametrize("strict", [False, True])
def test_regions_survive_the_users_own_export(strict: bool) -> None:
    program = torch.export.export(Nested(), (X,), strict=strict)
    assert regions(from_torch(program.module(), (X,))) == NESTED


def test_regions_survive_decompositions_files_and_another_export() -> None:
    program = torch.export.export(Nested(), (X,)).run_decompositions()
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    program = torch.export.export(torch.export.load(file).module(), (X,))
    assert regions(from_torch(program.module(), (X,))) == NESTED


def test_regions_survive_symbolic_tracing() -> None:
    assert regions(from_torch(torch.fx.symbolic_trace(Nested()), (X,))) == NESTED


def test_regions_survive_in_an_exported_program_itself() -> None:
    assert regions(from_torch(torch.export.export(Nested(), (X,)))) == NESTED


@pytest.mark.parametrize(
    "module",
    [nn.LSTM(8, 8, 2), nn.TransformerEncoderLayer(8, 2, 16).eval(), nn.BatchNorm1d(8).train()],
    ids=lambda module: type(module).__name__,
)
def test_decompositions_stay_in_the_region(module: nn.Module) -> None:
    model = from_torch(amp.disable_autocast(dtype="float32")(module), (X,))
    assert set(regions(model).values()) == {"float32"}


def test_what_is_written_in_place_is_in_its_region() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        y = x * 2.0
        with amp.disable_autocast(dtype="float32"):
            y.exp_()
        return y.tanh_()

    assert regions(from_torch(Calls(compute), (X,))) == {"multiply": "", "exp": "float32", "tanh": ""}


def test_regions_survive_symbolic_shapes() -> None:
    assert regions(from_torch(Nested(), (X,), dynamic={"batch": ("*", 0)})) == NESTED


def test_a_region_of_another_version_is_refused() -> None:
    program = torch.export.export(Nested(), (X,))
    for node in program.graph.nodes:
        if "custom" in node.meta:
            node.meta["custom"] = {"autocast_region": "float8"}
    with pytest.raises(ImportModelError, match="it is in a region 'float8'; expected one of 'guard', 'leave'"):
        from_torch(program.module(), (X,))


def test_a_thread_in_a_region_does_not_put_another_threads_export_in_it() -> None:
    inside, done = threading.Event(), threading.Event()

    def stay() -> None:
        with amp.disable_autocast():
            inside.set()
            done.wait(60)

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            threading.Thread(target=stay).start()  # while this thread exports
            inside.wait(60)
            return torch.exp(x)

    try:
        model = from_torch(Waits(), (X,))
    finally:
        done.set()
    assert regions(model) == {"exp": ""}


def test_what_is_imported_in_a_region_is_in_it() -> None:
    with amp.disable_autocast(dtype="float32"):
        model = from_torch(Calls(lambda x: torch.sin(torch.exp(x))), (X,))
    assert regions(model) == {"exp": "float32", "sin": "float32"}


def test_equal_calls_on_both_sides_of_an_edge_stay_two() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        with amp.disable_autocast(dtype="float32"):
            inside = F.softmax(x, -1) * F.softmax(x, -1)
        return inside + F.softmax(x, -1)

    main = from_torch(Calls(compute), (X,)).main
    softmaxes = [
        place_of(binding.var).region
        for block in main.body.blocks
        for binding in block.bindings
        if op_name(binding.value) == "relax.nn.softmax"
    ]
    assert softmaxes == ["float32", ""]


def test_an_activation_in_pieces_on_both_sides_of_an_edge_stays_in_pieces() -> None:
    def gelu(x: torch.Tensor, region: Any) -> torch.Tensor:
        with region:
            inner = torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3.0))
        return 0.5 * x * (1.0 + inner)

    assert "gelu_tanh" in regions(from_torch(Calls(lambda x: gelu(x, warnings.catch_warnings())), (X,)))
    assert "tanh" in regions(from_torch(Calls(lambda x: gelu(x, amp.disable_autocast())), (X,)))
