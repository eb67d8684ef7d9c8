"""What a module returns beside tensors: numbers and sizes are tensors without dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from autocast import vm, wrap
from autocast.frontend import from_torch


class _Summary(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {
            "positive": x.relu(),
            "loss": 0.1,
            "nothing": None,
            "rows": x.shape[0],
            "padded": x.shape[0] * 2 + 1,
            "mean": x.shape[0] / 4,
            "known": True,
            "word": "word",
        }


def _tensors(outputs: dict[str, Any]) -> list[torch.Tensor]:
    numbers = [value for value in outputs.values() if isinstance(value, int | float | torch.Tensor)]
    return [torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None) for value in numbers]


def test_numbers_and_sizes_are_results_without_dimensions() -> None:
    model = from_torch(_Summary(), (torch.randn(3, 2),), dynamic={"batch": ("x", 0, 1, 8)})
    assert model.output_names == ("positive", "loss", "rows", "padded", "mean", "known")
    executable = vm.compile(model)
    for rows in (3, 5):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(list(executable(x)), _tensors(_Summary()(x)), rtol=0, atol=0)


def test_a_number_that_a_tensor_holds_may_be_returned() -> None:
    class Largest(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.argmax().item(), x.max().item()

    x = torch.tensor([1.0, 3.0, 2.0])
    place, largest = vm.compile(from_torch(Largest(), (x,)))(x)
    assert (place.item(), largest.item()) == (1, 3.0)


class _Pair:
    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second


class _Output(dict[str, Any]):
    """As diffusers': torch has no names for what is in it, but its keys tell."""


@pytest.fixture
def containers() -> Iterator[None]:
    ways = {
        _Pair: (lambda pair: ([pair.first, pair.second], None), lambda parts, _: _Pair(*parts)),
        _Output: (
            lambda output: (list(output.values()), list(output)),
            lambda values, keys: _Output(zip(keys, values, strict=True)),
        ),
    }
    for kind, (flatten, unflatten) in ways.items():
        pytree.register_pytree_node(kind, flatten, unflatten, serialized_type_name=kind.__qualname__)
    yield
    for kind in ways:
        pytree._deregister_pytree_node(kind)


def test_containers_that_torch_has_no_names_for_come_in(containers: None) -> None:
    class Crossed(nn.Module):
        def forward(self, pair: _Pair, x: torch.Tensor) -> _Output:
            return _Output(sample=x + pair.first, others=_Pair(x * pair.second, x))

    x, first, second = torch.randn(3, 2, 4).unbind()
    model = from_torch(Crossed(), (_Pair(first, second), x))
    assert model.input_names == ("pair_0", "pair_1", "x")
    assert model.output_names == ("sample", "others.0", "others.1")
    with torch.no_grad():
        wrapped = wrap(Crossed())(_Pair(first, second), x)
    assert isinstance(wrapped, _Output) and isinstance(wrapped["others"], _Pair)
    for got in (vm.compile(model)(first, second, x), pytree.tree_leaves(wrapped)):
        torch.testing.assert_close(list(got), [x + first, x * second, x], rtol=0, atol=0)
    assert pytree.SUPPORTED_NODES[_Pair].flatten_with_keys_fn is None  # torch's registry is as it was
