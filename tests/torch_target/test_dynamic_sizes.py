"""Sizes that vary are values in a model, too: positions that are counted, masks that are made."""

from __future__ import annotations

import torch
from torch import nn

import autocast


def test_what_counts_to_a_size_that_varies_counts_to_it() -> None:
    class Positions(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(x.shape[0])

    module = autocast.to_torch(autocast.from_torch(Positions(), (torch.ones(4),), dynamic={"length": ("x", 0)}))
    for length in (1, 4, 9):
        x = torch.randn(length)
        torch.testing.assert_close(module(x), Positions()(x))
