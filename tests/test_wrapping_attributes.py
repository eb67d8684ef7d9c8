"""What a wrapped module's code goes by and somebody changes between two calls; what its results are the same as."""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import autocast


class _Mode(enum.Enum):
    PLUS = 1
    MINUS = -1


@dataclasses.dataclass
class _Options:
    k: float = 2.0


class _Many(nn.Module):
    """Asks attributes of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.act, self.mode = nn.Linear(4, 4), nn.LayerNorm(4), torch.relu, _Mode.PLUS
        self.options = _Options()
        self.config = types.SimpleNamespace(text=types.SimpleNamespace(rope={"a": {"factor": 2.0}}))
        self.several = [_Options()]
        self.scale, self.table = torch.tensor(2.0), {"rows": [torch.ones(4)]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.act(self.norm(self.linear(x))) * self.options.k * self.config.text.rope["a"]["factor"]
        y = y * self.several[0].k * getattr(self.linear, "adapter", 1.0) * self.scale + self.table["rows"][0]
        return y * self.mode.value


def _patch(module: _Many) -> None:
    linear = module.linear
    linear.forward = lambda x: nn.functional.linear(x.abs(), linear.weight, linear.bias)


class _OfSquares(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * x)


_CHANGES: dict[str, Callable[[Any], Any]] = {
    "another object": lambda module: setattr(module, "options", _Options(7.0)),
    "an equal object that changes": lambda module: (
        setattr(module, "options", _Options(2.0)),
        setattr(module.options, "k", 7.0),
    ),
    "an attribute more": lambda module: setattr(module.linear, "adapter", 3.0),
    "a function": lambda module: setattr(module, "act", torch.tanh),
    "a member of an enum": lambda module: setattr(module, "mode", _Mode.MINUS),
    "deep in a configuration": lambda module: module.config.text.rope["a"].update(factor=5.0),
    "an object in a list": lambda module: setattr(module.several[0], "k", 5.0),
    "an option of a layer of torch's": lambda module: setattr(module.norm, "eps", 3.0),
    "a forward": _patch,
    "a class": lambda module: setattr(module.linear, "__class__", _OfSquares),
    "a tensor, written": lambda module: module.scale.fill_(3.0),
    "a tensor": lambda module: setattr(module, "scale", torch.tensor(3.0)),
    "a tensor in a list": lambda module: module.table["rows"].__setitem__(0, torch.full((4,), 7.0)),
}


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One element for each import that wrapped modules make."""
    made: list[int] = []
    imported = autocast.wrapping.programs.from_torch
    counted = lambda *args, **options: made.append(0) or imported(*args, **options)  # noqa: E731
    monkeypatch.setattr("autocast.wrapping.programs.from_torch", counted)
    return made


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES.keys())
def test_attributes_that_change_are_seen(change: Callable[[Any], Any]) -> None:
    module, x = _Many(), torch.randn(3, 4)
    wrapped = autocast.wrap(copy.deepcopy(module), policy="mp0")
    before = wrapped(x)
    change(module), change(wrapped)
    wanted = module(x)
    assert not torch.allclose(before, wanted, rtol=1e-2, atol=1e-2)
    for _ in range(2):
        torch.testing.assert_close(wrapped(x), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["persistent", "not persistent", "whole", "complex"])
def test_buffers_that_are_written_are_read_again(kind: str) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            values = {"whole": torch.arange(4), "complex": torch.ones(4, dtype=torch.complex64)}
            self.register_buffer("scale", values.get(kind, torch.ones(4)), persistent=kind in ("persistent", "complex"))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (torch.view_as_real(self.scale).sum(1) if self.scale.is_complex() else self.scale)

    module, x = Scaled(), torch.randn(3, 4)
    wrapped = autocast.wrap(module, policy="mp0")
    for _ in range(3):
        torch.testing.assert_close(wrapped(x), module(x))
        module.scale.add_(3)
    torch.testing.assert_close(wrapped(x), module(x))


def test_a_buffer_that_calls_count_in_is_imported_once(imports: list[int]) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()), persistent=False)

        def forward(self, x: torch.Tensor, count: bool = True) -> torch.Tensor:
            if count:
                self.count += 1
            return x * self.count

    wrapped, x = autocast.wrap(Counting(), policy="mp0"), torch.randn(3)
    for count in range(1, 5):
        torch.testing.assert_close(wrapped(x), x * count)
    assert len(imports) == 1
    torch.testing.assert_close(wrapped(x, False), x * 4)
    torch.testing.assert_close(wrapped(x), x * 5)
    torch.testing.assert_close(wrapped(x, False), x * 5)
    assert len(imports) == 3


def test_a_part_that_a_layer_had_not_is_seen() -> None:
    class Adapted(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return y + self.adapter(x) if hasattr(self, "adapter") else y

    module, x = nn.Sequential(Adapted(4, 4)), torch.randn(3, 4)
    wrapped = autocast.wrap(module, policy="mp0")
    torch.testing.assert_close(wrapped(x), module(x))
    module[0].adapter = nn.Linear(4, 4)
    torch.testing.assert_close(wrapped(x), module(x))


def test_hooks_on_all_modules_are_called() -> None:
    module, x = _Many(), torch.randn(3, 4)
    wrapped = autocast.wrap(module, policy="mp0")
    before, doubled = wrapped(x), lambda part, inputs, output: output * 2 if isinstance(part, nn.LayerNorm) else None
    hook = nn.modules.module.register_module_forward_hook(doubled)
    try:
        torch.testing.assert_close(wrapped(x), module(x), rtol=1e-5, atol=1e-4)
    finally:
        hook.remove()
    torch.testing.assert_close(wrapped(x), before)


def test_what_changes_again_and_again_is_compiled_so_often_alone(imports: list[int]) -> None:
    module, x = _Many(), torch.randn(3, 4)
    wrapped = autocast.wrap(module, policy="mp0")
    programs = wrapped._autocast_compiled
    for k in range(12):
        module.options = _Options(float(k))
        wrapped.options = module.options
        torch.testing.assert_close(wrapped(x), module(x), rtol=1e-5, atol=1e-4)
    assert len(imports) == 8 and programs._renewals == 8


def test_numbers_that_vary_are_compiled_so_often_alone() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, k: float) -> torch.Tensor:
            return x * k

    wrapped, x = autocast.wrap(Scaled(), policy="mp0"), torch.randn(3)
    for k in (*(place / 7 for place in range(11)), float("nan"), float("nan")):
        torch.testing.assert_close(wrapped(x, k), x * k, equal_nan=True)
    assert len(wrapped._autocast_compiled._programs) == 8


def test_results_that_are_inputs_weights_or_one_another_are_these() -> None:
    class Returning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("cache", torch.zeros(3, 4))

        def forward(self, x: torch.Tensor, n: torch.Tensor | None = None, *, mask: torch.Tensor) -> Any:
            y = self.linear(x)
            return {"twice": [y, y], "inputs": (mask, n, x), "weights": (self.cache, self.linear.weight), "sum": x + y}

    wrapped = autocast.wrap(Returning(), policy="mp0")
    for _ in range(2):
        x, n, mask = torch.randn(3, 4), torch.ones(1), torch.randn(2)
        for got, given in (
            (wrapped(x, n, mask=mask), n),
            (wrapped(mask=mask, n=n, x=x), n),
            (wrapped(x, mask=mask), None),
        ):
            assert got["twice"][0] is got["twice"][1] and got["inputs"][0] is mask
            assert got["inputs"][1] is given and got["inputs"][2] is x
            assert got["weights"][0] is wrapped.cache and got["weights"][1] is wrapped.linear.weight
            torch.testing.assert_close(got["sum"], x + wrapped.linear(x))
