"""What a module returns beside tensors: numbers and sizes are tensors without dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from autocast import vm
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
