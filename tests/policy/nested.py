"""A module with a region of every kind, and how to read which region each operator of a model is in."""

from __future__ import annotations

import torch
from torch import nn

from autocast import amp
from autocast.ir import op_name, place_of
from autocast.model.value import Model

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def regions(model: Model) -> dict[str, str]:
    """The region of each operator of main, by its short name."""
    bindings = [binding for block in model.main.body.blocks for binding in block.bindings]
    names = {op_name(binding.value): place_of(binding.var).region for binding in bindings}
    return {name.rpartition(".")[2]: region for name, region in names.items() if name is not None}


class Nested(nn.Module):
    """relu outside, exp in float32, tanh in bfloat16 inside that, sin after it, cos in the author's dtypes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        x = torch.relu(x)
        with amp.disable_autocast(dtype="float32"):
            x = torch.exp(x)
            with amp.disable_autocast(dtype=torch.bfloat16):
                x = torch.tanh(x)
            x = torch.sin(x)
        with amp.disable_autocast():
            x = torch.cos(x)
        with amp.fp16_guard():
            return torch.sigmoid(x)


NESTED = {"relu": "", "exp": "float32", "tanh": "bfloat16", "sin": "float32", "cos": "leave", "sigmoid": "guard"}
