"""`torch.compile(module, backend="autocast")` infers with our kernels."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autocast import dynamo
from autocast.dynamo import graphs

#: Of bfloat16 products of a hundred terms of order 1.
_LOW = {"rtol": 2e-2, "atol": 2e-2}


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8)).eval()


def _compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend=dynamo.backend, **({"options": options} if options else {}))


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that the backend makes."""
    made: list[Any] = []
    cast = graphs.amp.autocast
    monkeypatch.setattr(graphs.amp, "autocast", lambda *args, **kw: made.append(cast(*args, **kw)) or made[-1])
    return made


def test_the_entry_point_is_the_backend() -> None:
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    value = project["entry-points"]["torch_dynamo_backends"]["autocast"]
    assert EntryPoint("autocast", value, "torch_dynamo_backends").load() is dynamo.backend


def test_a_compiled_module_gives_what_the_module_gives() -> None:
    module, x = _network(), torch.randn(4, 16)
    torch.testing.assert_close(_compiled(module)(x), module(x), **_LOW)


def test_a_convolution_with_its_norm_gives_what_the_module_gives() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2)).eval()
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(_compiled(module)(x), module(x), **_LOW)


def test_options_are_those_of_autocast(imports: list[Any]) -> None:
    _compiled(_network(), dtype="float16")(torch.randn(4, 16))
    assert "float16" in str(imports[0].mod)


def test_an_option_that_autocast_lacks_is_an_error_that_names_it() -> None:
    with pytest.raises(Exception, match="sharpness"):
        _compiled(_network(), sharpness=3)(torch.randn(4, 16))


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        (lambda x: x[:, : int(x.shape[1] * 0.7)] / math.sqrt(x.shape[1]), (9, 14, 20)),
        (lambda x: torch.cat(x.chunk(2, 1)[::-1], 1) + min(x.shape[1], 12), (9, 14, 20)),
        (lambda x: x.unflatten(1, (2, x.shape[1] // 2)).transpose(1, 2) * len(x), (8, 14, 20)),
    ],
    ids=["numbers", "parts", "multiples"],
)
def test_what_torch_checked_of_sizes_has_one_code_for_all(function: Any, sizes: Any, imports: list[Any]) -> None:
    compiled = torch.compile(function, backend=dynamo.backend, options={"policy": "mp0"}, dynamic=True)
    for size in sizes:
        x = torch.randn(3, size)
        torch.testing.assert_close(compiled(x), function(x))
    assert len(imports) == 1


def test_sizes_that_vary_are_compiled_once(imports: list[Any]) -> None:
    module = _network()
    compiled = _compiled(module)
    for rows in (4, 7, 9, 30):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(compiled(x), module(x), **_LOW)
    assert len(imports) == 2  # of four rows, then of any


@pytest.mark.parametrize(
    "function",
    [lambda x: (-1) ** x.floor() * x, lambda x: (-1.5) ** x.round(), lambda x: x * (-2) ** x.shape[0]],
    ids=["tensor", "float", "size"],
)
def test_powers_of_negative_numbers_are_not_negative_powers(function: Any) -> None:
    compiled = _compiled(function)
    for rows in (4, 5, 3):
        x = torch.randn(rows) * 3
        torch.testing.assert_close(compiled(x), function(x))


def test_weights_that_change_in_place_are_read_again(imports: list[Any]) -> None:
    module, x = _network(), torch.randn(4, 16)
    compiled = _compiled(module)
    compiled(x)
    module.load_state_dict({name: 2 * value for name, value in module.state_dict().items()})
    torch.testing.assert_close(compiled(x), module(x), rtol=2e-2, atol=8e-2)
    assert len(imports) == 1


@pytest.mark.parametrize("as_buffer", [False, True])
def test_complex_weights_that_change_are_read_again(as_buffer: bool, imports: list[Any]) -> None:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            values = torch.randn(5, dtype=torch.complex64)
            if as_buffer:
                self.register_buffer("weight", values)
            else:
                self.weight = nn.Parameter(values)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.irfft(torch.fft.rfft(x) * self.weight)

    module, x = Filter(), torch.randn(3, 8)
    compiled = _compiled(module, policy="mp0")
    for change in (
        lambda: module.weight.mul_(3),
        lambda: module.load_state_dict({"weight": module.weight.conj().resolve_conj() + 1}),
        lambda: None,
    ):
        torch.testing.assert_close(compiled(x), module(x))
        change()
    assert len(imports) == 1


def test_weights_are_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    executable = graphs.Executable
    monkeypatch.setattr(graphs, "Executable", lambda variant: made.append(executable(variant)) or made[-1])
    compiled, x = _compiled(_network()), torch.randn(4, 16)
    for _ in range(3):
        compiled(x)
    assert len(made) == 1


def test_layers_that_share_a_graph_have_their_own_weights(imports: list[Any]) -> None:
    layers = [_network(), _network()]

    @_compiled
    def apply(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x)

    x = torch.randn(4, 16)
    for layer in layers * 2:
        torch.testing.assert_close(apply(layer, x), layer(x), **_LOW)


def test_a_graph_break_makes_two_graphs(imports: list[Any]) -> None:
    def function(x: torch.Tensor, factor: int) -> tuple[torch.Tensor, int]:
        y = torch.relu(x) * factor
        torch._dynamo.graph_break()
        return y.sum(1) + x.shape[0], x.shape[0]

    compiled = _compiled(function)
    for rows in (4, 7, 9):
        x = torch.randn(rows, 6)
        got, expected = compiled(x, rows + 1), function(x, rows + 1)
        torch.testing.assert_close(got[0], expected[0])
        assert got[1] == rows
    assert len(imports) > 1


def test_a_graph_that_changes_buffers_does_so() -> None:
    module = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)).train()
    expected = copy.deepcopy(module)
    compiled = _compiled(module, policy="mp0")
    for rows in (4, 5, 5):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(compiled(x), expected(x))
    torch.testing.assert_close(module.state_dict(), expected.state_dict())


def test_a_graph_that_draws_numbers_draws_others_in_each_call() -> None:
    module = nn.Linear(8, 8)
    compiled = _compiled(lambda x: (module(x), torch.rand([])), policy="mp0")
    drawn = set()
    for _ in range(3):
        x = torch.randn(4, 8)
        module.weight.mul_(2)
        got, number = compiled(x)
        torch.testing.assert_close(got, module(x))
        drawn.add(float(number))
    assert len(drawn) == 3


def test_what_cannot_be_imported_is_an_error_that_names_it() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize()

    with pytest.raises(Exception, match="from_torch"):
        _compiled(function)(torch.randn(4, 16))


def test_a_graph_that_writes_into_its_input_does_so() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    x, expected = torch.zeros(4, 16), torch.full((4, 16), 2.0)
    assert torch.equal(_compiled(function)(x), expected)
    assert torch.equal(x, torch.ones(4, 16))


def test_a_graph_that_returns_another_input_than_it_writes_into_does_so() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(x)
        return x

    x, y = torch.ones(4, 16), torch.zeros(4, 16)
    assert _compiled(function)(x, y) is x
    assert torch.equal(y, x)


def test_a_graph_of_any_size_that_writes_and_returns_a_size_does_so() -> None:
    def function(x: torch.Tensor) -> int:
        x.add_(1)
        return x.shape[0] + 1

    x = torch.zeros(4, 16)
    assert torch.compile(function, backend=dynamo.backend, dynamic=True)(x) == 5
    assert torch.equal(x, torch.ones(4, 16))


def test_a_graph_that_returns_nothing_does_what_it_does() -> None:
    _compiled(lambda x: torch.random.seed() if x.shape else None)(torch.zeros(4))
    assert torch.initial_seed() != 0
