"""Functions of torch that its export refuses, or writes as something else, as other functions of torch.

While a module is exported inside of `rewritten_functions`, calls of them are calls of what is here. Alpha dropout,
which torch writes as numbers that are 0 or 1, would not be nothing in a model that is evaluated; `cov` and
`combinations` decide by values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

#: What selu approaches.
_SELU_LIMIT = -1.7580993408473766


def _alpha_dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = False, inplace: bool = False, *, of_features: bool
) -> torch.Tensor:
    """What keeps mean and variance of what selu computes: a dropped element is the limit of selu, and all are scaled.

    Each of the ones becomes 0 or larger in training, and stays 1 in evaluation.
    """
    if not training or not p:
        return input
    shape = [*input.shape[:2], *(1 for _ in input.shape[2:])] if of_features else input.shape
    kept = F.dropout(input.new_ones(shape), p, True)
    scale = 0.0 if p == 1 else ((1 - p) * (1 + p * _SELU_LIMIT**2)) ** -0.5
    offset = -scale * _SELU_LIMIT * p
    moved = torch.where(kept == 1, input, scale * input + offset)
    result = torch.where(kept == 0, scale * _SELU_LIMIT + offset, moved)
    return input.copy_(result) if inplace else result


def _cov(
    input: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Products of deviations from the weighted means of rows, over what of the weights is left after a correction."""
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    weights = rows.new_ones(rows.shape[1])
    for given in (fweights, aweights):
        weights = weights if given is None else weights * given
    total = weights.sum()
    lost = (weights * aweights).sum() / total if aweights is not None else 1
    deviations = rows - (rows * weights).sum(1, keepdim=True) / total
    products = deviations @ (deviations * weights).t().conj()
    return (products / (total - correction * lost).clamp(min=0)).squeeze()


def _corrcoef(input: torch.Tensor) -> torch.Tensor:
    covariance = _cov(input)
    if covariance.dim() == 0:
        return covariance / covariance
    deviations = covariance.diagonal().real.sqrt()
    correlation = covariance / deviations[:, None] / deviations[None]
    return correlation if correlation.is_complex() else correlation.clamp(-1, 1)


def _combinations(input: torch.Tensor, r: int = 2, with_replacement: bool = False) -> torch.Tensor:
    if r == 0 or not isinstance(input.shape[0], int):
        return torch.combinations(input, r, with_replacement)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(choose(range(input.shape[0]), r))
    return input[torch.tensor(places, dtype=torch.int64).reshape(len(places), r)]


#: Functions, as a module calls them, and what is called instead.
_FUNCTIONS: Mapping[Any, Callable[..., torch.Tensor]] = {
    F.alpha_dropout: partial(_alpha_dropout, of_features=False),
    F.feature_alpha_dropout: partial(_alpha_dropout, of_features=True),
    torch.combinations: _combinations,
    **dict.fromkeys((torch.cov, torch.Tensor.cov), _cov),
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), _corrcoef),
}


class rewritten_functions(TorchFunctionMode):
    """While this is active, other functions are called instead of those that torch.export does not do justice to."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _FUNCTIONS.get(func, func)(*args, **(kwargs or {}))
