"""Alpha dropout of torch as a dropout of ones, which a model that is evaluated has not.

torch.export writes it as numbers that are 0 or 1, and what it is without them is not what `eval()` makes of it. While a
module is exported inside of `written_alpha_dropout`, it is written so that it is.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

#: What selu approaches.
_LIMIT = -1.7580993408473766

#: The functions, and whether they drop whole features.
_FUNCTIONS = {F.alpha_dropout: False, F.feature_alpha_dropout: True}


class written_alpha_dropout(TorchFunctionMode):
    """While this is active, alpha dropout is written with a dropout of ones."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FUNCTIONS:
            return _dropped(_FUNCTIONS[func], *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _dropped(
    of_features: bool, input: torch.Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> torch.Tensor:
    """What keeps mean and variance of what selu computes: a dropped element is the limit of selu, and all are scaled.

    Each of the ones becomes 0 or larger in training, and stays 1 in evaluation.
    """
    if not training or not p:
        return input
    shape = [*input.shape[:2], *(1 for _ in input.shape[2:])] if of_features else input.shape
    kept = F.dropout(input.new_ones(shape), p, True)
    scale = 0.0 if p == 1 else ((1 - p) * (1 + p * _LIMIT**2)) ** -0.5
    offset = -scale * _LIMIT * p
    moved = torch.where(kept == 1, input, scale * input + offset)
    result = torch.where(kept == 0, scale * _LIMIT + offset, moved)
    return input.copy_(result) if inplace else result
