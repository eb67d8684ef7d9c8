"""Models of one expression, and modules of which no graph of launches can be made."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import autocast
from tests.fuzz.generator import parse


def of_expression(expression: str, shapes: dict[str, tuple[int, ...]]) -> tuple[Any, list[torch.Tensor]]:
    """A model of one expression, and its operands."""
    generator = torch.Generator().manual_seed(0)
    operands, types = [], []
    for name, shape in shapes.items():
        dtype = {"i": "int64", "c": "bool"}.get(name[0], "float64")
        types.append(f'{name}: R.Tensor({shape!r}, "{dtype}")')
        whole = torch.randint(0, 3, shape, generator=generator).to(getattr(torch, dtype))
        floats = torch.randn(shape, generator=generator, dtype=torch.float64)
        operands.append(floats if dtype == "float64" else whole)
    mod = parse(
        "@I.ir_module\nclass Module:\n    @R.function\n"
        f"    def main({', '.join(types)}):\n        y = {expression}\n        return y\n"
    )
    return autocast.from_relax(mod), operands


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
        return torch.linalg.matrix_exp(x @ x.t())
