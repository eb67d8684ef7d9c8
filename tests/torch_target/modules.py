"""Modules of which no graph of launches can be made."""

from __future__ import annotations

import torch
from torch import nn


class Chosen(nn.Module):
    """A branch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


class Found(nn.Module):
    """A size that values decide."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x)


class OfTorch(nn.Module):
    """An operator that is left to torch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.airy_ai(x @ x.t())
