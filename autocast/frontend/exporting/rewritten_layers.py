"""Layers of torch that its export does not do justice to, as tensors of the same values.

Their `forward` decides by values, or writes into memory that it makes larger.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

_batch_norm = _BatchNorm.forward


def _cumulative_batch_norm(self: _BatchNorm, input: torch.Tensor) -> torch.Tensor:
    """Batch norm whose running statistics are the means of those of all batches (`momentum=None`): torch reads how
    many there were as a number of Python's."""
    mean, variance, count = self.running_mean, self.running_var, self.num_batches_tracked
    if self.momentum is not None or not self.training or mean is None or variance is None or count is None:
        return _batch_norm(self, input)
    self._check_input_dim(input)
    count.add_(1)
    of_batch = mean.clone(), variance.clone()  # what it is evaluated by, and then the statistics of this batch alone
    result = F.batch_norm(input, *of_batch, self.weight, self.bias, True, 1.0, self.eps)
    share = 1.0 / count
    for running, new in zip((mean, variance), of_batch, strict=True):
        running.copy_(running * (1 - share) + new * share)
    return result


def _cross_map_norm(self: nn.CrossMapLRN2d, input: torch.Tensor) -> torch.Tensor:
    """Each channel over a power of the squares near it.

    torch keeps the first channel's in all sums, and of an even size sums those of a channel less.
    """
    reach, squares = (self.size - 1) // 2, input.square()
    near = F.pad(squares, (0, 0, 0, 0, reach, reach)).unfold(1, 2 * reach + 1, 1).sum(-1)
    is_beyond = torch.arange(input.shape[1], device=input.device)[:, None, None] > reach
    sums = near + torch.where(is_beyond, squares[:, :1], 0.0)
    return input * (sums * (self.alpha / self.size) + self.k) ** -self.beta


@contextlib.contextmanager
def rewritten_layers() -> Iterator[None]:
    """While this is active, layers are computed by tensors alone."""
    with (
        mock.patch.object(_BatchNorm, "forward", _cumulative_batch_norm),
        mock.patch.object(nn.CrossMapLRN2d, "forward", _cross_map_norm),
    ):
        yield
